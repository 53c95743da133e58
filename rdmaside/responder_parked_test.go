package rdmaside

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// parkedCase is a connection whose answers have a small account of their own.
func parkedCase(t *testing.T, h CallHandler) (s *stubResponder, replies *regmem.Account, m *ResponderMetrics) {
	a := newTestArena(t)
	replies = a.Account("replies", 64<<10)
	m = NewResponderMetrics(metrics.New(), "test")
	return newStubResponder(t, a.Account("calls", 16<<20), h, func(o *ResponderOptions) { o.Replies, o.Metrics = replies, m }), replies, m
}

// When there is no memory to answer Calls, they wait, in order, and the
// connection stays up.
func TestParkedForMemory(t *testing.T) {
	s, replies, m := parkedCase(t, callFunc(func(x *Exchange) { x.Reply([][]byte{getAttrReply(x.XID())}, nil) }))
	var got []uint32
	s.conn.onSend = func(fabric.Send) { got = append(got, binary.BigEndian.Uint32(s.conn.sent[:])) }
	var taken []*regmem.Lease
	for {
		l, err := replies.Lease(exchangeBuffer)
		if err != nil {
			break
		}
		taken = append(taken, l)
	}
	s.conn.deliver(append(plain(1, 8), getAttrCall(1)...), 0)
	s.loop.run()
	if s.state != up || len(got) != 0 || m.parked.Value() != 1 {
		t.Fatalf("state %d, %v answered, %d parked, without memory; want it up and waiting: %v", s.state, got, m.parked.Value(), s.reason)
	}
	for _, l := range taken {
		l.Release()
	}
	s.conn.settle(s.loop)
	if len(got) != 1 || got[0] != 1 {
		t.Fatalf("%v answered, want 1", got)
	}
	// The connection has an Exchange now, and 8 credits.
	taken = taken[:0]
	for {
		l, err := replies.Lease(exchangeBuffer)
		if err != nil {
			break
		}
		taken = append(taken, l)
	}
	for xid := uint32(2); xid <= 9; xid++ {
		s.conn.deliver(append(plain(xid, 8), getAttrCall(xid)...), 0)
	}
	s.conn.settle(s.loop)
	for i, xid := range got {
		if xid != uint32(i)+1 {
			t.Fatalf("answered in order %v", got)
		}
	}
	if len(got) != 9 || s.state != up {
		t.Errorf("%d of 9 answered with one Exchange: %v", len(got), s.reason)
	}
	// The connection is closed while messages are waiting.
	for xid := uint32(20); xid <= 25; xid++ {
		s.conn.deliver(append(plain(xid, 8), getAttrCall(xid)...), 0)
	}
	s.Close(nil)
	s.conn.settle(s.loop)
	for _, l := range taken {
		l.Release()
	}
	s.loop.run()
	if n := replies.Outstanding() + int(s.responder.opts.Receives.used.Load()); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A Call follows those that the same batch of completions, or the same task, has handed over, and no others.
func TestFollows(t *testing.T) {
	var follows []bool
	s, _, _ := parkedCase(t, callFunc(func(x *Exchange) {
		follows = append(follows, x.Follows())
		x.Reply([][]byte{getAttrReply(x.XID())}, nil)
	}))
	xid := uint32(0)
	batch := func(n int) {
		var cs []fabric.Completion
		for range n {
			xid++
			c, ok := s.conn.receive(append(plain(xid, 8), getAttrCall(xid)...), 0)
			if !ok {
				t.Fatal(s.conn.reason)
			}
			cs = append(cs, c)
		}
		s.conn.h.Completed(cs)
	}
	batch(1)
	batch(3)
	batch(2)
	if want := []bool{false, false, true, true, false, true}; !slices.Equal(follows, want) {
		t.Errorf("Follows is %v, want %v", follows, want)
	}
	for _, task := range []loop.Task{(*parkedTask)(s.ResponderConn), (*memoryTask)(s.ResponderConn)} {
		batch(1)
		if task.Run(); s.called {
			t.Errorf("what a %T hands over would follow the Call of a batch", task)
		}
	}
	s.Close(nil)
	s.conn.settle(s.loop)
}

// Messages wait on a connection whose Sends do not complete while its peer goes
// on.
func TestParkedForSends(t *testing.T) {
	s, _, m := parkedCase(t, callFunc(func(x *Exchange) { x.Reply([][]byte{getAttrReply(x.XID())}, nil) }))
	sent := 0
	s.conn.onSend = func(fabric.Send) { sent++ }
	calls := 0
	for m.parked.Value() == 0 && calls < 1000 {
		calls++
		s.conn.deliver(append(plain(uint32(calls), 8), getAttrCall(uint32(calls))...), 0)
	}
	if s.state != up || sent != calls-1 || calls < 32 {
		t.Fatalf("%d of %d answered, state %d: %v", sent, calls, s.state, s.reason)
	}
	s.conn.settle(s.loop)
	if s.state != up || sent != calls {
		t.Errorf("%d of %d answered, state %d: %v", sent, calls, s.state, s.reason)
	}
	s.Close(nil)
	s.conn.settle(s.loop)
}
