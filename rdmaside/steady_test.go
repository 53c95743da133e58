package rdmaside

import (
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// discard is a CallOwner that releases Replies.
type discard struct {
	done   int
	octets int
	err    *CallError
}

func (d *discard) CallDone(c *Call, err *CallError) {
	d.done++
	for _, p := range c.Reply.Parts() {
		d.octets += len(p)
	}
	d.err = err
	c.Reply.Release()
}

// A round is one Call and its Reply on a Requester. All messages are prepared, so
// that only the Requester's work is measured.
type round struct {
	r     *stubRequester
	owner *discard
	call  *Call
	reply []byte
	where int // offset of the Write chunk's handle in reply; 0 for none
}

func newRound(t testing.TB, data int) *round {
	a := newTestArena(t)
	x := &round{r: newStubRequester(t, a.Account("replies", 32<<20), nil), owner: &discard{}}
	t.Cleanup(func() {
		x.r.Close(nil)
		x.r.conn.settle(x.r.loop)
	})
	m := getAttrCall(1)
	x.reply = append(plain(1, 8), getAttrReply(1)...)
	if data > 0 {
		m = readCall(1, data)
		whole, pos := readReply(1, pattern(data, 1))
		h := header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Length: uint32(data)}) })
		x.where = 28
		x.reply = append(h, cut(whole, pos, data)...)
	}
	l, err := a.Lease(len(m))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	copy(l.Bytes(), m)
	x.call = prepare(t, x.r.Requester, l.Bytes(), x.owner)
	return x
}

func (x *round) run(t testing.TB) {
	if err := x.r.Send(x.call); err != nil {
		t.Fatal(err)
	}
	if x.where > 0 {
		binary.BigEndian.PutUint32(x.reply[x.where:], uint32(x.r.conn.last))
	}
	x.r.conn.step()
	x.r.conn.deliver(x.reply, 0)
	if x.owner.err != nil || x.r.state != up {
		t.Fatal(x.owner.err, x.r.reason)
	}
}

func TestRequesterAllocs(t *testing.T) {
	for _, tt := range []struct {
		name string
		data int
	}{{"inline", 0}, {"READ of 64 KiB", 64 << 10}} {
		x := newRound(t, tt.data)
		for range 100 {
			x.run(t)
		}
		if testkit.RaceEnabled {
			continue // race builds poison and reallocate leases
		}
		if n := testing.AllocsPerRun(200, func() { x.run(t) }); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
}

func BenchmarkRequester(b *testing.B) {
	for _, tt := range []struct {
		name string
		data int
	}{{"inline", 0}, {"read64K", 64 << 10}, {"read1M", 1 << 20}} {
		b.Run(tt.name, func(b *testing.B) {
			x := newRound(b, tt.data)
			b.SetBytes(int64(len(x.call.Message) + len(x.reply))) // chunks are not touched
			b.ReportAllocs()
			for b.Loop() {
				x.run(b)
			}
		})
	}
}

// An echo is a CallHandler that answers with prepared Replies.
type echo struct {
	parts [][]byte
	calls int
}

func (e *echo) Call(x *Exchange) {
	e.calls++
	x.Reply(e.parts, nil)
}

type serving struct {
	s    *stubResponder
	h    *echo
	call []byte
}

func newServing(t testing.TB, data int) *serving {
	a := newTestArena(t)
	v := &serving{h: &echo{}}
	v.s = newStubResponder(t, a.Account("calls", 32<<20), v.h, nil)
	t.Cleanup(func() {
		v.s.Close(nil)
		v.s.conn.settle(v.s.loop)
	})
	v.call = append(plain(1, 8), getAttrCall(1)...)
	m := getAttrReply(1)
	if data > 0 {
		v.call = append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 5, Length: uint32(data)}) }), readCall(1, data)...)
		m, _ = readReply(1, pattern(data, 1))
	}
	v.h.parts = [][]byte{m}
	return v
}

func (v *serving) run(t testing.TB) {
	n := v.s.conn.sends
	v.s.conn.deliver(v.call, 0)
	v.s.conn.step()
	if v.s.conn.sends != n+1 || v.s.state != up {
		t.Fatal("no reply", v.s.reason)
	}
}

func TestResponderAllocs(t *testing.T) {
	for _, tt := range []struct {
		name string
		data int
	}{{"inline", 0}, {"READ of 64 KiB", 64 << 10}} {
		v := newServing(t, tt.data)
		for range 100 {
			v.run(t)
		}
		if testkit.RaceEnabled {
			continue
		}
		if n := testing.AllocsPerRun(200, func() { v.run(t) }); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
	// A WRITE of 64 KiB in a Read chunk.
	v := newServing(t, 0)
	data := pattern(64<<10, 1)
	m := writeCall(1, data)
	pos := len(m) - len(data)
	v.call = append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
		h.AddRead(uint32(pos), rpcrdma.Segment{Handle: 5, Length: uint32(len(data))})
	}), m[:pos]...)
	run := func() {
		n := v.h.calls
		v.s.conn.deliver(v.call, 0)
		v.s.conn.step()
		v.s.conn.step()
		if v.h.calls != n+1 {
			t.Fatal("no call", v.s.reason)
		}
	}
	for range 100 {
		run()
	}
	if testkit.RaceEnabled {
		return
	}
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("WRITE of 64 KiB: %v allocations", n)
	}
}

func BenchmarkResponder(b *testing.B) {
	for _, tt := range []struct {
		name string
		data int
	}{{"inline", 0}, {"read64K", 64 << 10}} {
		b.Run(tt.name, func(b *testing.B) {
			v := newServing(b, tt.data)
			b.SetBytes(int64(len(v.call))) // chunks are not touched
			b.ReportAllocs()
			for b.Loop() {
				v.run(b)
			}
		})
	}
}
