package rdmaside

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A backOwner makes reverse Calls and records how they end.
type backOwner struct {
	tc   *responderCase
	lent int // Calls that are still lent
	done []reverseEnd
}

type reverseEnd struct {
	xid uint32
	m   []byte
	err error
}

func (o *backOwner) Release() { o.lent-- }

func (o *backOwner) ReverseDone(c *ResponderConn, xid uint32, m *regmem.Lease, err error) {
	e := reverseEnd{xid: xid, err: err}
	if c != o.tc.c || (m == nil) == (err == nil) {
		o.tc.t.Errorf("reverse call %d ended with memory %v and %v", xid, m, err)
	}
	if m != nil {
		e.m = bytes.Clone(m.Bytes())
		m.Release()
	}
	o.done = append(o.done, e)
}

// call makes a reverse Call and returns the error of ReverseCall.
func (o *backOwner) call(m []byte) (err error) {
	b := o.tc.lend(m)
	o.tc.loop.Do(func() {
		o.lent++
		if err = o.tc.c.ReverseCall(b, o, o); err != nil {
			o.lent--
		}
	})
	synctest.Wait()
	return err
}

func (o *backOwner) take(why string, m []byte) {
	o.tc.t.Helper()
	if err := o.call(m); err != nil {
		o.tc.t.Fatalf("%s: %v", why, err)
	}
}

// wantDone asserts how the oldest completed Call ended, and removes it.
func (o *backOwner) wantDone(why string, xid uint32, m []byte, err error) {
	o.tc.t.Helper()
	synctest.Wait()
	if len(o.done) == 0 {
		o.tc.t.Fatalf("no reverse call has ended; want %d: %s", xid, why)
	}
	e := o.done[0]
	o.done = o.done[1:]
	if e.xid != xid || !bytes.Equal(e.m, m) || !errors.Is(e.err, err) {
		o.tc.t.Fatalf("%s: call %d ended with %x, %v; want %d, %x, %v", why, e.xid, e.m, e.err, xid, m, err)
	}
}

func (o *backOwner) wantNotDone(why string) {
	o.tc.t.Helper()
	synctest.Wait()
	if len(o.done) > 0 {
		o.tc.t.Fatalf("call %d ended with %x, %v: %s", o.done[0].xid, o.done[0].m, o.done[0].err, why)
	}
}

// wantSent asserts that the next message is the reverse Call m, and removes it.
func (o *backOwner) wantSent(why string, m []byte) {
	o.tc.t.Helper()
	xid := binary.BigEndian.Uint32(m)
	if s := o.tc.peer.wantSend(why); !bytes.Equal(s.octets, append(plain(xid, 3), m...)) || s.invalidated != 0 {
		o.tc.t.Fatalf("%s: sent\n%x\nwant RDMA_MSG with 3 credits and\n%x", why, s.octets, m)
	}
}

// answer sends a reverse Reply, granting credits.
func (o *backOwner) answer(xid, credits uint32, n int) []byte {
	m := accepted(xid, pattern(n, byte(xid)))
	o.tc.peer.send(0, plain(xid, credits), m)
	return m
}

// receives returns how many Receives there are beside those of the grant and the
// spare ones. A forward Call holds one if it came inline and was not copied.
func (o *backOwner) receives() int {
	synctest.Wait()
	n := o.tc.provider.Counts(o.tc.c.conn).Receives - o.tc.opts.Credits - spareReceives
	o.tc.loop.Do(func() {
		for _, x := range o.tc.c.exchanges {
			if x.recv >= 0 {
				n++
			}
		}
	})
	return n
}

// callbackTest runs f with a connection that asks for 3 reverse credits.
func callbackTest(t *testing.T, setup func(tc *responderCase), f func(tc *responderCase, o *backOwner)) {
	t.Helper()
	o := &backOwner{}
	responderTest(t, func(tc *responderCase) {
		o.tc = tc
		tc.opts.ReverseCredits = 3
		if setup != nil {
			setup(tc)
		}
	}, func(tc *responderCase) {
		f(tc, o)
		tc.loop.Do(func() { tc.c.Close(nil) })
		synctest.Wait()
		for _, e := range o.done {
			if !errors.Is(e.err, ErrClosed) {
				t.Errorf("at the end call %d ended with %x, %v", e.xid, e.m, e.err)
			}
		}
		if o.lent != 0 {
			t.Errorf("%d calls were not given back", o.lent)
		}
		if err := o.call(callback(1, 8)); !errors.Is(err, ErrClosed) {
			t.Errorf("a reverse call at the end: %v", err)
		}
	})
}

func TestCallback(t *testing.T) {
	callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
		if n := o.receives(); n != 0 {
			t.Errorf("%d Receives more before there is a reverse call", n)
		}
		tc.peer.send(0, plain(5, 8), getAttrCall(5))
		x := tc.wantCall("a forward call with the same XID", getAttrCall(5))
		for xid := range uint32(20) {
			m := callback(xid, int(xid)*200)
			o.take("a call", m)
			o.wantSent("the call as it is", m)
			o.wantNotDone("no answer yet")
			if n := o.receives(); n != 1 {
				t.Errorf("%d Receives for one reverse call", n)
			}
			o.wantDone("its reply", xid, o.answer(xid, 1, 40), nil)
			o.answer(xid, 1, 40)
			o.wantNotDone("answered twice")
		}
		if got := tc.opts.Metrics.droppedReply.Value(); got != 20 {
			t.Errorf("%d stray replies counted, want 20", got)
		}
		tc.answer(x, getAttrReply(5))
		if s := tc.peer.wantSend("the forward reply"); s.Credits != 8 {
			t.Errorf("%d credits granted: those of reverse replies are another matter", s.Credits)
		}
		if a, b := tc.opts.Metrics.reverse.calls.Value(), tc.opts.Metrics.reverse.replies.Value(); a != 20 || b != 20 {
			t.Errorf("%d calls and %d replies counted", a, b)
		}
	})
}

// There is one credit until the first Reply, then as many as the Requester
// grants, and at most those requested: RFC 8166 Section 3.3.3, RFC 8167 Section
// 4.1.
func TestCallbackCredits(t *testing.T) {
	callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
		for xid := range uint32(10) {
			o.take("a call", callback(xid, 8))
		}
		o.wantSent("the first", callback(0, 8))
		tc.peer.wantIdle("one credit until the first Reply")
		if n := o.receives(); n != 3 {
			t.Errorf("%d Receives for replies, want as many as credits were asked for", n)
		}
		o.wantDone("the first", 0, o.answer(0, 100, 4), nil)
		for xid := range uint32(3) {
			o.wantSent("as many as were asked for", callback(xid+1, 8))
		}
		tc.peer.wantIdle("not more than were asked for")
		o.wantDone("in any order", 2, o.answer(2, 2, 4), nil)
		tc.peer.wantIdle("the grant went down to 2, which are outstanding")
		o.wantDone("in any order", 3, o.answer(3, 2, 4), nil)
		o.wantSent("one more", callback(4, 8))
		o.answer(7, 3, 4)
		o.wantNotDone("7 was not sent")
		tc.peer.wantIdle("what answers nothing grants nothing")
		o.wantDone("0 is read as 1", 1, o.answer(1, 0, 4), nil)
		tc.peer.wantIdle("one is outstanding")
		for xid := uint32(4); xid < 10; xid++ {
			o.wantDone("in turn", xid, o.answer(xid, 1, 4), nil)
			if xid < 9 {
				o.wantSent("the next", callback(xid+1, 8))
			}
		}
		tc.peer.wantIdle("that was all")
		if n := o.receives(); n != 3 {
			t.Errorf("%d Receives more at the end, want 3", n)
		}
		for round := range 3 { // there are Receives for all Calls and Replies of both directions
			calls := uint32(8)
			if round == 0 {
				calls = 1
			}
			for xid := range calls {
				tc.peer.send(0, plain(xid, 8), getAttrCall(xid))
			}
			for xid := range calls {
				tc.answer(tc.wantCall("forward", getAttrCall(xid)), getAttrReply(xid))
				tc.peer.wantSend("forward")
			}
		}
	})
}

// A retransmission is not sent again, and another Call with the same XID is
// refused.
func TestCallbackAgain(t *testing.T) {
	callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
		other := &backOwner{tc: tc}
		o.take("the first", callback(1, 8))
		o.take("waits", callback(2, 8))
		o.wantSent("the first", callback(1, 8))
		for _, xid := range []uint32{1, 2} {
			other.take("again", callback(xid, 8))
			if err := o.call(callback(xid, 12)); !errors.Is(err, errReverseXID) {
				t.Errorf("another call with XID %d: %v", xid, err)
			}
		}
		tc.peer.wantIdle("sent once")
		other.wantDone("who asked last", 1, o.answer(1, 1, 4), nil)
		o.wantSent("the second", callback(2, 8))
		other.wantDone("who asked last", 2, o.answer(2, 1, 4), nil)
		o.wantNotDone("it gave them away")
		if other.lent != 0 {
			t.Errorf("%d calls were not given back", other.lent)
		}
		o.take("after the answer it is a new one", callback(1, 12))
		o.wantSent("a new one", callback(1, 12))
	})
}

func TestCallbackRefusals(t *testing.T) {
	callbackTest(t, nil, refusedCallbacks)
	callbackTest(t, nil, malformedAnswers)
}

// refusedCallbacks makes reverse Calls that are not sent, and has the Requester
// send messages that answer none.
func refusedCallbacks(tc *responderCase, o *backOwner) {
	m := tc.opts.Metrics
	o.take("as much as fits", callback(1, 4096-28-40))
	o.wantSent("as much as fits", callback(1, 4096-28-40))
	if err := o.call(callback(2, 4096-28-36)); !errors.Is(err, errReverseLong) {
		tc.t.Errorf("4 octets more: %v", err)
	}
	if n := m.reverse.refused[callbackLong].Value(); n != 1 {
		tc.t.Errorf("%d refused for %s, want 1", n, callbackRefusalNames[callbackLong])
	}
	for _, b := range [][]byte{{}, callback(3, 8)[:7], accepted(3), callback(3, 7)} {
		if err := o.call(b); err == nil || errors.Is(err, ErrClosed) {
			tc.t.Errorf("%x was taken for a call: %v", b, err)
		}
	}
	tc.peer.wantIdle("nothing of that is sent")
	seg := rpcrdma.Segment{Handle: 7, Length: 400, Offset: 9}
	chunk := header(1, 3, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(seg) })
	for i, b := range [][]byte{
		append(plain(1, 3), accepted(2)...), // the XIDs differ
		append(plain(2, 3), accepted(1)...),
		append(chunk, accepted(1)...),
	} {
		tc.peer.send(0, b)
		o.wantNotDone("not an answer")
		tc.peer.wantIdle("not a call")
		if n := m.droppedReply.Value(); int(n) != i+1 {
			tc.t.Errorf("%d replies dropped, want %d", n, i+1)
		}
	}
	tc.wantUp("it harms nothing")
}

// malformedAnswers has the Requester answer with messages that are no Replies.
func malformedAnswers(tc *responderCase, o *backOwner) {
	m := tc.opts.Metrics
	for i, b := range [][]byte{
		append(plain(1, 3), accepted(1)[:16]...),
		append(plain(1, 3), append(accepted(1), 0, 0, 0)...),
		append(plain(1, 3), words(1, 1)...),
		words(1, 1, 3, 4, 2),       // ERR_CHUNK
		words(1, 1, 3, 4, 1, 1, 1), // ERR_VERS
	} {
		c := callback(1, 8+i*4)
		o.take("a call", c)
		o.wantSent("a call", c)
		tc.peer.send(0, b)
		o.wantDone("no answer", 1, nil, errReverseReply)
		tc.peer.send(0, b)
		o.wantNotDone("it has ended")
		tc.wantUp("it harms nothing else")
	}
	if a, b := m.reverse.refused[callbackMalformed].Value(), m.reverse.refused[callbackError].Value(); a != 3 || b != 2 {
		tc.t.Errorf("%d malformed and %d errors counted, want 3 and 2", a, b)
	}
	tc.peer.send(0, words(9, 1, 3, 4, 2))
	tc.wantUp("RDMA_ERROR that answers nothing")
	if n := m.droppedProc.Value(); n != 3 {
		tc.t.Errorf("%d RDMA_ERRORs dropped, want 3", n)
	}
	if n := o.receives(); n != 1 {
		tc.t.Errorf("%d Receives more, want 1", n)
	}
}

// When a Requester does not answer, the number of waiting Calls is bounded. They
// are sent when the server cannot be waiting for the first any more.
func TestCallbackUnanswered(t *testing.T) {
	callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
		m := tc.opts.Metrics
		for xid := range uint32(1 + reverseWaiting) {
			o.take("a call", callback(xid, 8))
		}
		o.wantSent("the first", callback(0, 8))
		if err := o.call(callback(1000, 8)); !errors.Is(err, errReverseBusy) {
			t.Errorf("one more than may wait: %v", err)
		}
		if n := m.reverse.refused[callbackBusy].Value(); n != 1 {
			t.Errorf("%d busy counted", n)
		}
		time.Sleep(reverseTimeout + time.Second)
		tc.peer.wantIdle("nothing happens by itself")
		o.take("one more", callback(1001, 8))
		o.wantDone("nobody waits for it", 0, nil, ErrDeadline)
		o.wantSent("the next has its credit", callback(1, 8))
		tc.peer.wantIdle("there is one")
		o.answer(0, 3, 4)
		o.wantNotDone("too late")
		o.wantDone("the other one", 1, o.answer(1, 3, 4), nil)
		for xid := range uint32(3) {
			o.wantSent("with the credits granted", callback(xid+2, 8))
		}
		if n := m.reverse.unanswered.Value(); n != 1 {
			t.Errorf("%d unanswered counted, want 1", n)
		}
	})
}

// A server that repeats a Call which waits gets it sent, if the Call before it has not been answered in time.
func TestCallbackAgainUnanswered(t *testing.T) {
	callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
		o.take("the first", callback(1, 8))
		o.take("waits", callback(2, 8))
		o.wantSent("the first", callback(1, 8))
		time.Sleep(reverseTimeout + time.Second)
		o.take("again", callback(2, 8))
		o.wantDone("nobody waits for it", 1, nil, ErrDeadline)
		o.wantSent("the credit of the first", callback(2, 8))
		o.wantDone("the second", 2, o.answer(2, 1, 4), nil)
	})
}

// When the connection is closed, all Calls complete once, sent or waiting.
func TestCallbackEnd(t *testing.T) {
	for _, cause := range []error{nil, errors.New("a reason")} {
		callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
			for xid := range uint32(5) {
				o.take("a call", callback(xid, 8))
			}
			if cause == nil {
				tc.loop.Do(func() { tc.c.Close(nil) })
			} else {
				fabricClose(tc, cause)
			}
			for xid := range uint32(5) {
				o.wantDone("the end", xid, nil, ErrClosed)
			}
			o.wantNotDone("once")
			if n := tc.opts.Metrics.reverse.unanswered.Value(); n != 1 {
				t.Errorf("%d unanswered counted, want the one that was sent", n)
			}
		})
	}
}

func fabricClose(tc *responderCase, err error) {
	tc.peerLoop.Do(func() { tc.peer.conn.Close(err) })
	synctest.Wait()
}

// A lack of memory fails one reverse Call and has no other effect.
func TestCallbackMemory(t *testing.T) {
	var receives *regmem.Account
	callbackTest(t, func(tc *responderCase) {
		receives = tc.arena.Account("receives", 1<<20)
		tc.opts.Receives = NewReceivePool(receives)
	}, func(tc *responderCase, o *backOwner) {
		all := exhaust(receives)
		if err := o.call(callback(1, 8)); !errors.Is(err, ErrNoMemory) {
			t.Errorf("without a Receive for the reply: %v", err)
		}
		tc.peer.wantIdle("not sent")
		tc.wantUp("others are not harmed")
		tc.peer.send(0, plain(5, 8), getAttrCall(5))
		tc.answer(tc.wantCall("forward", getAttrCall(5)), getAttrReply(5))
		tc.peer.wantSend("forward")
		for _, l := range all {
			l.Release()
		}
		o.take("there is memory", callback(1, 8))
		o.wantSent("there is memory", callback(1, 8))
	})
	callbackTest(t, nil, func(tc *responderCase, o *backOwner) {
		o.take("a call", callback(1, 8))
		o.wantSent("a call", callback(1, 8))
		all := exhaust(tc.replies)
		o.answer(1, 3, 40)
		o.wantDone("its reply cannot be kept", 1, nil, regmem.ErrBudget)
		for _, l := range all {
			l.Release()
		}
		tc.wantUp("it harms nothing else")
		o.take("the next", callback(2, 8))
		o.wantSent("the next", callback(2, 8))
		o.wantDone("the next", 2, o.answer(2, 3, 40), nil)
	})
}

// exhaust leases all memory of the account.
func exhaust(a *regmem.Account) (all []*regmem.Lease) {
	for _, n := range []int{1 << 20, 64 << 10, 4096, 512, 64} {
		for {
			l, err := a.Lease(n)
			if err != nil {
				break
			}
			all = append(all, l)
		}
	}
	return all
}

// The Send of a Call may complete after its Reply has come. Its slot is not used
// again before that.
func TestCallbackSlots(t *testing.T) {
	arena := newTestArena(t)
	account := arena.Account("calls", 8<<20)
	s := newStubResponder(t, account, callFunc(func(*Exchange) {}), func(o *ResponderOptions) { o.ReverseCredits = 2 })
	l, err := account.Lease(1024)
	if err != nil {
		t.Fatal(err)
	}
	var back fuzzReverse
	for xid := range uint32(8) {
		m := l.Bytes()[xid*64:][:len(callback(xid, 8))]
		copy(m, callback(xid, 8))
		if err := s.ReverseCall(m, &back, &back); err != nil {
			t.Fatal(err)
		}
		if xid < 4 { // two slots for each credit
			if s.conn.sends != int(xid)+1 {
				t.Fatalf("%d sent of %d", s.conn.sends, xid+1)
			}
			s.conn.deliver(append(plain(xid, 1), accepted(xid)...), 0)
		}
	}
	if s.conn.sends != 4 || back.given != 0 || back.ended != 4 {
		t.Errorf("%d sent, %d given back and %d answered; want 4, 0 and 4: no Send has completed", s.conn.sends, back.given, back.ended)
	}
	s.conn.step()
	if s.conn.sends != 5 || back.given != 4 {
		t.Errorf("%d sent and %d given back, want 5 and 4", s.conn.sends, back.given)
	}
	s.conn.fail = errors.New("a failure")
	s.conn.deliver(append(plain(4, 2), accepted(4)...), 0)
	s.conn.settle(s.loop)
	if s.state != ended || !errors.Is(s.reason, s.conn.fail) || back.given != 8 || back.ended != 8 {
		t.Errorf("state %d for %v, %d given back and %d ended; want all 8", s.state, s.reason, back.given, back.ended)
	}
	l.Release()
}
