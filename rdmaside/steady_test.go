package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
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
		if raceEnabled {
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
		if raceEnabled {
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
	if raceEnabled {
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

// A Reply that cannot be posted closes the connection, and its memory is released
// only after that.
func TestResponderPostFails(t *testing.T) {
	a := newTestArena(t)
	done := &releases{}
	m, _ := readReply(1, pattern(9000, 1))
	s := newStubResponder(t, a.Account("calls", 16<<20), callFunc(func(x *Exchange) { x.Reply([][]byte{m}, done) }), nil)
	s.conn.fail = fabric.ErrQueueFull
	s.conn.deliver(append(header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(rpcrdma.Segment{Handle: 5, Length: 9000}) }), readCall(1, 9000)...), 0)
	if done.n != 0 || s.state != ending {
		t.Errorf("released %d times before the end, state %d", done.n, s.state)
	}
	s.conn.settle(s.loop)
	if done.n != 1 || s.Outstanding() != 0 {
		t.Errorf("released %d times, %d calls outstanding", done.n, s.Outstanding())
	}
}

type callFunc func(x *Exchange)

func (f callFunc) Call(x *Exchange) { f(x) }

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

func TestFateString(t *testing.T) {
	for f, want := range map[Fate]string{NotSent: "not_sent", InLimbo: "in_limbo", Answered: "answered", 9: "unknown"} {
		if f.String() != want {
			t.Errorf("%d: %s, want %s", f, f, want)
		}
	}
	err := &CallError{XID: 0x10, Fate: InLimbo, Err: ErrDeadline}
	if want := "rdmaside: call 0x00000010 in_limbo: " + ErrDeadline.Error(); err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
