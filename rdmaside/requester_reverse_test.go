package rdmaside

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A backHandler is a ReverseHandler that keeps its Calls until the test answers
// them.
type backHandler struct {
	tc     *requesterCase
	deaf   bool // ReverseCall refuses every Call
	calls  []*regmem.Lease
	lent   int // answers that are still lent
	answer func(r *Requester, m *regmem.Lease)
}

func (h *backHandler) ReverseCall(r *Requester, m *regmem.Lease) bool {
	if h.deaf {
		return false
	}
	h.calls = append(h.calls, m)
	if h.answer != nil {
		h.answer(r, m)
	}
	return true
}

func (h *backHandler) Release() { h.lent-- }

// reply answers xid with m and returns the error of ReverseReply.
func (h *backHandler) reply(xid uint32, m []byte) (err error) {
	b := h.tc.lend(m)
	h.tc.loop.Do(func() {
		h.lent++
		if err = h.tc.r.ReverseReply(xid, b, h); err != nil {
			h.lent--
		}
	})
	synctest.Wait()
	return err
}

// wantCall asserts that the oldest Call is m, and removes it.
func (h *backHandler) wantCall(why string, want []byte) {
	h.tc.t.Helper()
	synctest.Wait()
	if len(h.calls) == 0 || !bytes.Equal(h.calls[0].Bytes(), want) {
		h.tc.t.Fatalf("%d calls; want one of %x: %s", len(h.calls), want, why)
	}
	h.calls[0].Release()
	h.calls = h.calls[1:]
}

func (h *backHandler) wantNone(why string) {
	h.tc.t.Helper()
	synctest.Wait()
	if len(h.calls) > 0 {
		h.tc.t.Fatalf("called with %x: %s", h.calls[0].Bytes(), why)
	}
}

func callback(xid uint32, n int) []byte {
	return append(words(xid, 0, 2, 0x40000000, 1, 1, 0, 0, 0, 0), pattern(n, byte(xid))...)
}

// reverseTest runs f with a Requester of 2 credits in the reverse direction.
func reverseTest(t *testing.T, f func(tc *requesterCase, h *backHandler)) {
	t.Helper()
	h := &backHandler{}
	requesterTest(t, func(tc *requesterCase) {
		h.tc = tc
		tc.opts.Reverse, tc.opts.ReverseReceives = h, 2
	}, func(tc *requesterCase) {
		f(tc, h)
		tc.loop.Do(func() { tc.r.Close(nil) })
		synctest.Wait()
		for _, l := range h.calls {
			l.Release()
		}
		if h.lent != 0 {
			t.Errorf("%d answers were not given back", h.lent)
		}
	})
}

func (tc *requesterCase) wantReverse(why string, xid uint32, reply []byte, stat ...uint32) {
	tc.t.Helper()
	want := bytes.Join([][]byte{plain(xid, 2), reply, words(stat...)}, nil)
	if s := tc.peer.wantSend(why); !bytes.Equal(s.octets, want) {
		tc.t.Errorf("%s: sent\n%x\nwant\n%x", why, s.octets, want)
	}
}

func TestReverse(t *testing.T) {
	reverseTest(t, func(tc *requesterCase, h *backHandler) {
		tc.send(getAttrCall(5))
		tc.peer.wantSend("a call")
		for xid := range uint32(20) {
			m := callback(xid, int(xid)*200)
			tc.peer.send(0, plain(xid, 16), m)
			h.wantCall("the plain call", m)
			if err := h.reply(xid, accepted(xid, pattern(40, 3))); err != nil {
				t.Fatal(err)
			}
			tc.wantReverse("its reply", xid, accepted(xid, pattern(40, 3)))
			if err := h.reply(xid, accepted(xid)); !errors.Is(err, ErrNoReverseCall) {
				t.Errorf("answered twice: %v", err)
			}
		}
		tc.wantNotDone("5 is a call of the other direction as well")
		if len(tc.grants) != 0 {
			t.Errorf("grants %v: the credits of a reverse call are a request", tc.grants)
		}
		tc.peer.send(0, plain(5, 8), getAttrReply(5))
		tc.wantReply("the forward call", getAttrReply(5))
	})
}

// The handler may answer inside ReverseCall.
func TestReverseAtOnce(t *testing.T) {
	reverseTest(t, func(tc *requesterCase, h *backHandler) {
		reply := tc.lend(accepted(9))
		h.answer = func(r *Requester, m *regmem.Lease) {
			h.lent++
			if err := r.ReverseReply(9, reply, h); err != nil {
				t.Error(err)
			}
		}
		for range 10 {
			tc.peer.send(0, plain(9, 2), callback(9, 8))
			tc.wantReverse("answered at once", 9, accepted(9))
		}
	})
}

// The credits of the reverse direction bound the outstanding Calls. A Responder
// that exceeds them loses the oldest Call, not the connection.
func TestReverseCredits(t *testing.T) {
	reverseTest(t, func(tc *requesterCase, h *backHandler) {
		m := tc.opts.Metrics
		for xid := range uint32(5) {
			tc.peer.send(0, plain(xid, 2), callback(xid, 8))
			h.wantCall("handed on", callback(xid, 8))
		}
		for xid := range uint32(3) {
			if err := h.reply(xid, accepted(xid)); !errors.Is(err, ErrNoReverseCall) {
				t.Errorf("call %d, of which the peer had given up: %v", xid, err)
			}
		}
		if m.reverseLost.Value() != 3 {
			t.Errorf("%d calls lost, want 3", m.reverseLost.Value())
		}
		tc.peer.wantIdle("nobody has answered")
		// A retransmission does not count as another Call.
		tc.peer.send(0, plain(4, 2), callback(4, 8))
		h.wantCall("handed on again", callback(4, 8))
		for _, xid := range []uint32{4, 3} {
			if err := h.reply(xid, accepted(xid)); err != nil {
				t.Error(err)
			}
			tc.wantReverse("answered", xid, accepted(xid))
		}
		if n := len(tc.r.reverse.idle); n != 4 {
			t.Errorf("%d slots free, want 4", n)
		}
		// Sends that do not complete hold their slots. The Calls that come then
		// get none.
		tc.provider.HoldCompletions(tc.r.conn, true)
		for xid := range uint32(4) {
			tc.loop.Do(func() { (*requesterHandler)(tc.r).reverseCallForTest(xid) })
			h.wantCall("handed on", callback(xid, 8))
			if err := h.reply(xid, accepted(xid)); err != nil {
				t.Error(err)
			}
		}
		tc.loop.Do(func() { (*requesterHandler)(tc.r).reverseCallForTest(9) })
		h.wantNone("there is no slot to answer it")
		if m.droppedReverse.Value() != 1 {
			t.Errorf("%d calls dropped, want 1", m.droppedReverse.Value())
		}
		tc.provider.HoldCompletions(tc.r.conn, false)
		for xid := range uint32(4) {
			tc.wantReverse("answered", xid, accepted(xid))
		}
	})
}

// reverseCallForTest delivers a reverse Call without a Receive. The completion of
// its answer may be held.
func (h *requesterHandler) reverseCallForTest(xid uint32) {
	r := (*Requester)(h)
	r.header.Reset(xid, 2, rpcrdma.Msg)
	r.reverseCall(callback(xid, 8), &r.header)
}

func TestReverseRefusals(t *testing.T) {
	reverseTest(t, func(tc *requesterCase, h *backHandler) {
		m := tc.opts.Metrics
		tc.send(getAttrCall(3)) // the XIDs of the other direction do not matter
		tc.peer.wantSend("a call")
		for xid := range uint32(6) {
			tc.refuseChunks(xid)
		}
		for _, b := range [][]byte{callback(7, 8)[:39], callback(8, 8), words(7, 0), words(7, 0, 3, 1, 1, 1, 0, 0, 0, 0)} {
			tc.peer.send(0, plain(7, 2), b)
			tc.peer.wantIdle("what is no call, or has another XID, cannot be answered")
		}
		h.wantNone("all were refused")
		h.deaf = true
		for range 10 {
			tc.peer.send(0, plain(7, 2), callback(7, 8))
			tc.wantReverse("not taken", 7, accepted(7)[:20], oncrpc.SystemError)
		}
		h.deaf = false
		h.refuseAnswers(tc)

		for reason, want := range map[reverseRefusal]uint64{reverseChunk: 18, reverseClient: 10, reverseLong: 1, reverseMalformed: 4} {
			if n := m.reverseRefused[reason].Value(); n != want {
				t.Errorf("%d refused for %s, want %d", n, reverseRefusalNames[reason], want)
			}
		}
		if n := m.droppedReverse.Value(); n != 4 {
			t.Errorf("%d dropped, want 4", n)
		}
		tc.peer.send(0, plain(3, 8), getAttrReply(3))
		tc.wantReply("the forward call", getAttrReply(3))
		tc.wantUp("nothing of that harms the connection")
	})
}

// refuseChunks sends reverse Calls with chunks, and in one, and wants ERR_CHUNK.
func (tc *requesterCase) refuseChunks(xid uint32) {
	tc.t.Helper()
	seg := rpcrdma.Segment{Handle: 7, Length: 4096, Offset: 9}
	wantErrChunk := func(why string) {
		tc.t.Helper()
		if s := tc.peer.wantSend(why); !bytes.Equal(s.octets, words(xid, 1, 2, 4, 2)) {
			tc.t.Errorf("%s: sent %x, want ERR_CHUNK", why, s.octets)
		}
	}
	tc.peer.send(0, header(xid, 2, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddRead(40, seg) }), callback(xid, 8))
	wantErrChunk("a Read chunk")
	tc.peer.send(0, header(xid, 2, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(seg) }), callback(xid, 8))
	wantErrChunk("a Write chunk")
	tc.peer.send(0, header(xid, 2, rpcrdma.NoMsg, func(h *rpcrdma.Header) { h.AddRead(0, seg) }))
	wantErrChunk("RDMA_NOMSG")
}

// refuseAnswers answers reverse Calls with messages that cannot be sent, then with
// the longest that can.
func (h *backHandler) refuseAnswers(tc *requesterCase) {
	tc.t.Helper()
	for _, b := range [][]byte{accepted(7, pattern(4096-28-24+4, 1)), accepted(7, pattern(3, 1)), accepted(8), callback(7, 8), words(7, 1, 0, 0)} {
		tc.peer.send(0, plain(7, 2), callback(7, 8))
		h.wantCall("handed on", callback(7, 8))
		if err := h.reply(7, b); err != nil {
			tc.t.Error(err)
		}
		tc.wantReverse("an answer that cannot be sent", 7, accepted(7)[:20], oncrpc.SystemError)
		if h.lent != 0 {
			tc.t.Error("what was not sent is not given back")
		}
	}
	tc.peer.send(0, plain(7, 2), callback(7, 8))
	h.wantCall("handed on", callback(7, 8))
	fits := accepted(7, pattern(4096-28-24, 1))
	if err := h.reply(7, fits); err != nil {
		tc.t.Error(err)
	}
	tc.wantReverse("the longest answer", 7, fits)
}

// Without memory the Requester answers a reverse Call with SYSTEM_ERR.
func TestReverseNoMemory(t *testing.T) {
	h := &backHandler{}
	requesterTest(t, func(tc *requesterCase) {
		h.tc = tc
		tc.opts.Reverse = h
		tc.replies = tc.arena.Account("small", 16<<20)
		tc.opts.Memory = tc.replies
	}, func(tc *requesterCase) {
		var all []*regmem.Lease
		for n := 1 << 20; n >= 64; {
			l, err := tc.replies.Lease(n)
			if err != nil {
				n /= 2
				continue
			}
			all = append(all, l)
		}
		tc.peer.send(0, plain(7, 2), callback(7, 3000))
		s := tc.peer.wantSend("there is no memory")
		if !bytes.Equal(s.payload, append(accepted(7)[:20], words(oncrpc.SystemError)...)) {
			t.Errorf("sent %x, want SYSTEM_ERR", s.payload)
		}
		h.wantNone("there is no memory")
		for _, l := range all {
			l.Release()
		}
		tc.peer.send(0, plain(7, 2), callback(7, 3000))
		h.wantCall("there is memory", callback(7, 3000))
	})
}

// Everything that is lent for reverse Calls is released when the connection is
// closed.
func TestReverseEnd(t *testing.T) {
	reverseTest(t, func(tc *requesterCase, h *backHandler) {
		for xid := range uint32(2) {
			tc.peer.send(0, plain(xid, 2), callback(xid, 8))
		}
		tc.provider.HoldCompletions(tc.r.conn, true)
		if err := h.reply(0, accepted(0)); err != nil {
			t.Error(err)
		}
		if h.lent != 1 {
			t.Error("an answer was given back before its Send completed")
		}
		tc.provider.Break(tc.r.conn, errors.New("broken by the test"))
		tc.provider.HoldCompletions(tc.r.conn, false)
		synctest.Wait()
		if err := h.reply(1, accepted(1)); !errors.Is(err, ErrNoReverseCall) {
			t.Errorf("answered after the end: %v", err)
		}
		if n := tc.opts.Metrics.reverseLost.Value(); n != 1 {
			t.Errorf("%d calls lost, want 1", n)
		}
	})
}

// There are as many Receives as Calls need, and never fewer than the peer may
// use.
func TestIdleReceives(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) {
		tc.opts.Credits, tc.opts.ReverseReceives, tc.opts.IdleReceives = 32, 2, 6
	}, func(tc *requesterCase) {
		posted := func() int { return tc.provider.Counts(tc.r.conn).Receives }
		if n := posted(); n != 6 {
			t.Errorf("%d Receives posted in the beginning, want 6", n)
		}
		tc.open(32)
		for round := range uint32(3) {
			for i := range uint32(32) {
				tc.send(getAttrCall(round<<8 | i))
				tc.peer.wantSend("a call")
				if n, least := posted(), int(i)+1+2; n < least || n > max(6, least+3) {
					t.Errorf("%d Receives posted with %d calls outstanding, want %d", n, i+1, least)
				}
			}
			for i := range uint32(32) {
				reply := accepted(round<<8|i, pattern(int(i%2)*3000, 1)) // copied, or kept with its Receive
				tc.peer.send(0, plain(round<<8|i, 32), reply)
				tc.wantReply("a reply", reply)
				if n, least := posted(), 31-int(i)+2; n < least {
					t.Errorf("%d Receives posted with %d calls outstanding, want %d", n, 31-i, least)
				}
			}
			if n := posted(); n < 6 || n > 6+extraReceives {
				t.Errorf("%d Receives posted in the end, want 6 or a few more", n)
			}
		}
		for i := range uint32(20) {
			tc.peer.send(0, plain(i, 2), callback(i, 8))
			tc.peer.wantSend("reverse calls use none up")
			if n := posted(); n < 6 {
				t.Errorf("%d Receives posted after %d reverse calls", n, i+1)
			}
		}
	})
}

// A reverse Call and its answer allocate nothing in the steady state.
func TestReverseAllocs(t *testing.T) {
	a := newTestArena(t)
	h := &steadyBack{}
	r := newStubRequester(t, a.Account("replies", 32<<20), func(o *RequesterOptions) { o.Reverse = h })
	t.Cleanup(func() {
		r.Close(nil)
		r.conn.settle(r.loop)
	})
	l, err := a.Lease(28)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	h.reply = l.Bytes()[:24]
	copy(h.reply, accepted(1))
	m := append(plain(1, 2), callback(1, 100)...)
	run := func() {
		r.conn.deliver(m, 0)
		r.conn.step()
	}
	for range 100 {
		run()
	}
	if n := testing.AllocsPerRun(200, run); n != 0 && !testkit.RaceEnabled {
		t.Errorf("%v allocations", n)
	}
	if h.lent != 0 || h.n == 0 {
		t.Errorf("%d calls, %d answers not given back", h.n, h.lent)
	}
}

type steadyBack struct {
	reply   []byte
	n, lent int
}

func (h *steadyBack) ReverseCall(r *Requester, m *regmem.Lease) bool {
	m.Release()
	h.n++
	h.lent++
	return r.ReverseReply(1, h.reply, h) == nil
}

func (h *steadyBack) Release() { h.lent-- }
