package rdmaside

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A handle that is not invalidated at once delays its Reply: rule B4.
func TestRequesterAsyncInvalidate(t *testing.T) {
	data := pattern(65535, 1)
	want, pos := readReply(1, data)
	answer := func(tc *requesterCase, s *wantedSend) {
		seg := s.Writes[0].Segments[0]
		tc.peer.write(seg, data)
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, len(data))) }), cut(want, pos, len(data)))
	}
	// hold delays Sends, and the Invalidates that are queued behind them.
	hold := func(tc *requesterCase) {
		tc.provider.Inject(func(op fabrictest.Operation) fabrictest.Verdict {
			if op.Dialed {
				return fabrictest.Hold
			}
			return fabrictest.Pass
		})
	}
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			requesterTest(t, nil, func(tc *requesterCase) {
				tc.open(8)
				tc.provider.AsyncInvalidate(true)
				tc.send(readCall(1, 65536))
				s := tc.peer.wantSend("READ")
				hold(tc)
				tc.send(getAttrCall(2))
				answer(tc, s)
				tc.wantHandles("it is not dead yet", 1)
				tc.wantNotDone("the peer may still write")
				if lost {
					tc.provider.Break(tc.r.conn, io.ErrUnexpectedEOF)
					tc.wantReply("with the connection the handle is dead, and the Reply is whole", want)
					tc.wantFate("the other", 2, InLimbo, io.ErrUnexpectedEOF)
					return
				}
				tc.provider.Inject(nil)
				tc.provider.Resume(tc.r.conn)
				tc.wantReply("after the handle is dead", want)
				tc.wantHandles("it is", 0)
			})
		})
	}
}

// Without memory a Call is refused, nothing leaks, and outstanding Calls can
// still be answered.
func TestRequesterNoMemory(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) {
		tc.replies = tc.arena.Account("small", 512<<10)
		tc.opts.Memory = tc.replies
	}, func(tc *requesterCase) {
		tc.open(8)
		tc.send(readCall(1, 65536))
		tc.send(readCall(2, 65536))
		var sent int
		var err error
		for sent = range 6 {
			if err = tc.try(readCall(uint32(sent)+3, 65536)); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrNoMemory) {
			t.Fatalf("%d calls with a Write chunk of 64 KiB: %v, want ErrNoMemory", sent+2, err)
		}
		tc.send(getAttrCall(50))
		called := false
		c := &Call{need: 65536}
		tc.r.Wait(c, func() { called = true })
		synctest.Wait()
		if called {
			t.Error("Wait called at once")
		}
		seg := tc.peer.wantSend("READ").Writes[0].Segments[0]
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, 0)) }), accepted(1, words(70, 0)))
		tc.wantReply("a READ without memory to spare", accepted(1, words(70, 0)))
		if !called {
			t.Error("Wait did not call when memory came back")
		}
		if err := tc.try(readCall(51, 65536)); err != nil {
			t.Errorf("after memory came back: %v", err)
		}
	})
}

// CallDone may send the next Call.
func TestRequesterSendFromDone(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		n := 0
		tc.onDone = func(c *Call, err *CallError) {
			if err != nil || n == 5 {
				return
			}
			n++
			next := &Call{XID: c.XID + 1, Message: c.Message, Owner: tc, Analysis: c.Analysis, Binding: c.Binding}
			copy(next.Message, words(next.XID))
			if err := tc.r.Send(next); err != nil {
				t.Errorf("Send inside CallDone: %v", err)
			}
		}
		tc.send(getAttrCall(1))
		for i := range uint32(6) {
			tc.peer.wantSend("one after another")
			tc.peer.send(0, plain(i+1, 1), getAttrReply(i+1))
			tc.wantReply("and its reply", getAttrReply(i+1))
		}
	})
}

func TestRequesterBusyXID(t *testing.T) {
	requesterTest(t, nil, func(tc *requesterCase) {
		tc.open(8)
		tc.send(getAttrCall(7))
		if err := tc.try(getAttrCall(7)); !errors.Is(err, ErrBusyXID) {
			t.Errorf("the same XID again: %v, want ErrBusyXID", err)
		}
		tc.peer.send(0, plain(7, 8), getAttrReply(7))
		tc.wantReply("the first", getAttrReply(7))
		tc.send(getAttrCall(7))
	})
}

// A Send that cannot be posted leaves nothing behind.
func TestRequesterSendFails(t *testing.T) {
	a := newTestArena(t)
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	l, _ := a.Lease(200)
	defer l.Release()
	copy(l.Bytes(), readCall(1, 65536))
	owner := &discard{}
	c := prepare(t, r.Requester, l.Bytes(), owner)
	before := a.Outstanding()
	r.conn.fail = fabric.ErrQueueFull
	if err := r.Send(c); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("Send: %v", err)
	}
	if n := a.Outstanding(); n != before || len(r.conn.handles) != 0 || r.Outstanding() != 0 || owner.done != 0 {
		t.Errorf("%d leases, %d handles, %d calls are left", n-before, len(r.conn.handles), r.Outstanding())
	}
	r.conn.fail = nil
	if err := r.Send(c); err != nil {
		t.Errorf("again: %v", err)
	}
	r.Close(nil)
	r.conn.settle(r.loop)
	if owner.err == nil || owner.err.Fate != InLimbo || owner.done != 1 {
		t.Errorf("done %d times, %v", owner.done, owner.err)
	}
}

// When the Send of a Call failed and its handles are not invalidated at once,
// Send accepts the Call, which then completes as NotSent.
func TestRequesterNotSent(t *testing.T) {
	a := newTestArena(t)
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	owner := &discard{}
	c := prepare(t, r.Requester, readCall(1, 65536), owner)
	r.conn.fail, r.conn.async = fabric.ErrQueueFull, true
	if err := r.Send(c); err != nil {
		t.Fatalf("Send: %v", err)
	}
	if owner.done != 0 || r.Outstanding() != 1 {
		t.Fatalf("done %d times, %d outstanding, with a live handle: B4", owner.done, r.Outstanding())
	}
	r.conn.step()
	if owner.done != 1 || owner.err == nil || owner.err.Fate != NotSent || !errors.Is(owner.err, fabric.ErrQueueFull) || !owner.err.Local {
		t.Errorf("done %d times, %v", owner.done, owner.err)
	}
	if r.Free() != 1 || r.state != up {
		t.Errorf("free %d, state %d", r.Free(), r.state)
	}
	// Nothing was sent, so the Call may be sent again.
	r.conn.fail = nil
	if err := r.Send(c); err != nil {
		t.Errorf("Send of the same Call again: %v", err)
	}
	r.Close(nil)
	r.conn.settle(r.loop)
}

// A flushed completion says that the provider has failed, before Closed says why.
// A Call sent between the two fails with ErrClosed.
func TestRequesterSendAfterFlush(t *testing.T) {
	a := newTestArena(t)
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	r.conn.closing = true
	batch := r.conn.receives
	r.conn.receives = nil
	for i := range batch {
		batch[i].Err = fabric.ErrFlushed
	}
	r.conn.h.Completed(batch)
	if err := r.Send(prepare(t, r.Requester, getAttrCall(1), &discard{})); !errors.Is(err, ErrClosed) {
		t.Errorf("Send without a Receive: %v, want ErrClosed", err)
	}
	r.conn.settle(r.loop)
}

// A limit of the provider is temporary and has nothing to do with the Call.
func TestRequesterProviderBusy(t *testing.T) {
	a := newTestArena(t)
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	r.conn.failRegister = fmt.Errorf("handles: %w", fabric.ErrLimit)
	c := prepare(t, r.Requester, readCall(1, 65536), &discard{})
	if err := r.Send(c); !errors.Is(err, ErrProviderBusy) {
		t.Errorf("Send without a handle to spare: %v, want ErrProviderBusy", err)
	}
	r.conn.failRegister = nil
	if err := r.Send(c); err != nil {
		t.Errorf("Send with one: %v", err)
	}
	r.Close(nil)
	r.conn.settle(r.loop)
}

// "if it is unable to invalidate a memory region due to an unrecoverable problem,
// the Requester MUST close the connection": RFC 8166 Section 4.5.4. The Reply is
// delivered after that.
func TestRequesterInvalidateFails(t *testing.T) {
	a := newTestArena(t)
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	owner := &discard{}
	if err := r.Send(prepare(t, r.Requester, readCall(1, 65536), owner)); err != nil {
		t.Fatal(err)
	}
	r.conn.step()
	r.conn.failInvalidate = errors.New("device lost")
	m, _ := readReply(1, pattern(100, 1))
	r.conn.deliver(append(plain(1, 8), m...), 0)
	if owner.done != 0 || r.state != ending {
		t.Fatalf("done %d times, state %d, with a live handle", owner.done, r.state)
	}
	r.conn.settle(r.loop)
	if owner.done != 1 || owner.err != nil || owner.octets != len(m) {
		t.Errorf("done %d times, %v, %d octets", owner.done, owner.err, owner.octets)
	}
}

func TestRequesterRegisterFails(t *testing.T) {
	a := newTestArena(t)
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	owner := &discard{}
	r.conn.failRegister = fabric.ErrLimit
	for _, m := range [][]byte{readCall(1, 65536), writeCall(2, pattern(9000, 1)), opaqueCall(3, 9000)} {
		if err := r.Send(prepare(t, r.Requester, m, owner)); !errors.Is(err, fabric.ErrLimit) {
			t.Errorf("Send: %v", err)
		}
	}
	bad := prepare(t, r.Requester, writeCall(4, pattern(9000, 1)), owner)
	bad.Analysis.ArgLength = 1 << 30
	r.conn.failRegister = nil
	if err := r.Send(bad); err == nil {
		t.Error("an argument beyond the call was taken")
	}
	if err := r.Send(&Call{XID: 1, Message: getAttrCall(2), Owner: owner, Binding: bad.Binding}); err == nil {
		t.Error("a call with another XID was taken")
	}
	if r.Outstanding() != 0 || owner.done != 0 || len(r.conn.handles) != 0 {
		t.Errorf("%d outstanding, %d done, %d handles", r.Outstanding(), owner.done, len(r.conn.handles))
	}
	r.Close(nil)
	r.conn.settle(r.loop)
}
