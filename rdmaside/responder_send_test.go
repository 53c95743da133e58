package rdmaside

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// testReplyMemory answers a READ with a Reply in parts, which end at the given cuts, on a connection that set
// changes. It asserts that the Reply's memory is released once, and not before the Send has ended. The
// connection is in state want meanwhile.
func testReplyMemory(t *testing.T, set func(*stubConn), want connState, cuts ...int) *stubResponder {
	t.Helper()
	a := newTestArena(t)
	done := &releases{}
	m, _ := readReply(1, pattern(9000, 1))
	var parts [][]byte
	at := 0
	for _, c := range append(cuts, len(m)) {
		parts = append(parts, m[at:c])
		at = c
	}
	s := newStubResponder(t, a.Account("calls", 16<<20), callFunc(func(x *Exchange) { x.Reply(parts, done) }), nil)
	set(s.conn)
	s.conn.deliver(append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 5, Length: 9000}) }), readCall(1, 9000)...), 0)
	if done.n != 0 || s.state != want {
		t.Errorf("released %d times before the end, state %d", done.n, s.state)
	}
	s.conn.settle(s.loop)
	if done.n != 1 || s.Outstanding() != 0 {
		t.Errorf("released %d times, %d calls outstanding", done.n, s.Outstanding())
	}
	return s
}

// A Reply that cannot be posted closes the connection, and its memory is released
// only after that.
func TestResponderPostFails(t *testing.T) {
	testReplyMemory(t, func(c *stubConn) { c.fail = fabric.ErrQueueFull }, ending)
}

// A Reply whose parts have to be joined belongs to its owner until the client has it, as any other: the owner
// charges the client for the memory.
func TestResponderJoinedReply(t *testing.T) {
	s := testReplyMemory(t, func(*stubConn) {}, up, 30, 100)
	s.Close(nil)
	s.conn.settle(s.loop)
}

// A header that is too long for its usual place takes memory for itself, and not for the Reply that goes by Writes.
func TestResponderLongHeaderMemory(t *testing.T) {
	a := newTestArena(t)
	replies := a.Account("replies", 16<<20)
	m := accepted(1, pattern(1<<20, 1))
	s := newStubResponder(t, a.Account("calls", 16<<20), callFunc(func(x *Exchange) { x.Reply([][]byte{m}, nil) }), func(o *ResponderOptions) { o.Replies = replies })
	s.conn.deliver(append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		segs := make([]rpcrdma.Segment, 40)
		for i := range segs {
			segs[i] = rpcrdma.Segment{Handle: uint32(i + 1), Length: 32 << 10}
		}
		h.SetReply(segs...)
	}), opaqueCall(1, 8)...), 0)
	if used := replies.Used(); s.state != up || used == 0 || used > 64<<10 {
		t.Errorf("%d octets of memory are in use for a header, state %d", used, s.state)
	}
	s.conn.settle(s.loop)
	s.Close(nil)
	s.conn.settle(s.loop)
}

// Answers that do not fit the send queue wait, in order.
func TestResponderQueued(t *testing.T) {
	a := newTestArena(t)
	var got []uint32
	m := accepted(1, pattern(9000, 1))
	s := newStubResponder(t, a.Account("calls", 16<<20), callFunc(func(x *Exchange) {
		copy(m, words(x.XID()))
		x.Reply([][]byte{m}, nil)
	}), nil)
	s.conn.onSend = func(fabric.Send) { got = append(got, binary.BigEndian.Uint32(s.conn.sent[:])) }
	deliver := func(xid uint32) {
		s.conn.deliver(append(header(xid, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
			segs := make([]rpcrdma.Segment, 200)
			for i := range segs {
				segs[i] = rpcrdma.Segment{Handle: uint32(i + 1), Length: 50}
			}
			h.SetReply(segs...)
		}), opaqueCall(xid, 8)...), 0)
	}
	for xid := range uint32(12) {
		deliver(xid + 1)
		if xid == 0 {
			continue
		}
	}
	if s.state != up {
		t.Fatal(s.reason)
	}
	if len(got) >= 12 || s.queued.first == nil {
		t.Fatalf("%d answers of 201 Work Requests each are posted", len(got))
	}
	s.conn.settle(s.loop)
	for i, xid := range got {
		if xid != uint32(i)+1 {
			t.Fatalf("answers in order %v", got)
		}
	}
	if len(got) != 12 {
		t.Errorf("%d of 12 answers", len(got))
	}
	s.Close(nil)
	s.conn.settle(s.loop)
}

// TestResponderCopies: short answers are copied when they are posted, and what belongs to their Calls is free at once. Short
// Calls that come in place lie in the buffers of their Exchanges, longer ones in their Receive buffers.
func TestResponderCopies(t *testing.T) {
	const calls = 2000 // more than the send queue has room for
	responderTest(t, nil, func(tc *responderCase) {
		var want []byte
		reply := tc.lend(accepted(0, pattern(40, 1)))
		copied, kept, received, done := 0, 0, 0, &releases{}
		tc.reply = func(x *Exchange) {
			if !bytes.Equal(x.Message(), want) {
				t.Errorf("call\n%x\nwant\n%x", x.Message(), want)
			}
			switch n := rpcrdma.PlainLen + len(want); {
			case x.recv >= 0:
				received++
			case n > exchangeHeaderMax || &x.message[0] != &x.buffer.Bytes()[rpcrdma.PlainLen]:
				t.Errorf("a message of %d octets is neither in its Receive buffer nor in that of its Exchange", n)
			default:
				kept++
			}
			before := done.n
			copy(reply, words(x.XID()))
			x.ReplyCopy([][]byte{reply}, done)
			copied += done.n - before
		}
		for xid := range uint32(calls) {
			want = opaqueCall(xid, int(xid)%150*4)
			tc.peer.send(0, plain(xid, 8), want)
			tc.peer.wantSend("an answer")
		}
		synctest.Wait()
		if done.n != calls || copied == 0 || copied == calls {
			t.Errorf("%d answers released, %d of them at once; want %d, and half of them", done.n, copied, calls)
		}
		if kept == 0 || received == 0 {
			t.Errorf("%d calls in the buffers of their Exchanges, %d in Receive buffers", kept, received)
		}
		if c := tc.c; c.work != c.sendRoom() || len(c.idle) != len(c.exchanges) {
			t.Errorf("room for %d Work Requests of %d, %d idle Exchanges of %d", c.work, c.sendRoom(), len(c.idle), len(c.exchanges))
		}
	})
}

// TestReplyNow: a Reply to a short Call without chunks is copied at once when the provider can do that. Otherwise nothing is
// done, and the Call is still there.
func TestReplyNow(t *testing.T) {
	const calls = 300
	responderTest(t, nil, func(tc *responderCase) {
		var want []byte
		reply := tc.lend(accepted(0, pattern(40, 1)))
		chunk := tc.offer(make([]byte, 4096), fabric.RemoteWrite)
		now, later, done := 0, 0, &releases{}
		tc.reply = func(x *Exchange) {
			m := append(words(x.XID()), reply[4:]...)
			if x.ReplyNow(m) {
				if x.xid%3 == 0 || len(want) > exchangeHeaderMax-rpcrdma.PlainLen {
					t.Errorf("Call %d of %d octets is answered at once", x.xid, len(want))
				}
				now++
				clear(m) // was borrowed
				return
			}
			if !bytes.Equal(x.Message(), want) {
				t.Errorf("call\n%x\nwant\n%x", x.Message(), want)
			}
			later++
			copy(reply, m)
			x.Reply([][]byte{reply}, done)
		}
		for xid := range uint32(calls) {
			want = opaqueCall(xid, int(xid)%150*4)
			h := plain(xid, 8)
			if xid%3 == 0 {
				h = header(xid, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.SetReply(chunk) })
			}
			tc.peer.send(0, h, want)
			s := tc.peer.wantSend("an answer")
			if s.XID != xid || s.Credits != 8 || !bytes.Equal(s.payload, append(words(xid), reply[4:]...)) {
				t.Fatalf("answer %+v, %x", &s.Header, s.payload)
			}
		}
		synctest.Wait()
		if done.n != later || now < calls/16 || later < calls/2 {
			t.Errorf("%d answers at once, %d later, of which %d were released", now, later, done.n)
		}
		if c := tc.c; c.work != c.sendRoom() || len(c.idle) != len(c.exchanges) || c.Outstanding() != 0 {
			t.Errorf("room for %d Work Requests of %d, %d idle Exchanges of %d", c.work, c.sendRoom(), len(c.idle), len(c.exchanges))
		}
	})
}
