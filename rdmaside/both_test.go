package rdmaside

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A pairing is a Requester and a Responder of this package, connected to each
// other.
type pairing struct {
	t     testing.TB
	arena *regmem.Arena
	calls *regmem.Account
	loops [2]*fabrictest.Loop
	p     *fabrictest.Loopback
	r     *Requester
	l     fabric.Listener
	endc  chan error

	serving *fabrictest.Loop // the loop of the Responder
}

func (p *pairing) Granted(*Requester, int)       {}
func (p *pairing) Ended(_ *Requester, err error) { p.endc <- err }

type pairOptions struct {
	requester  RequesterOptions
	responder  ResponderOptions
	async      bool
	accounts   int64 // octets of each account
	handler    CallHandler
	handlerFor func(p *pairing) CallHandler

	responderLoop *fabrictest.Loop // nil means a loop of its own
}

func pair(t testing.TB, o pairOptions) *pairing {
	arena, err := regmem.New(regmem.Options{Budget: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if o.accounts == 0 {
		o.accounts = 64 << 20
	}
	p := &pairing{
		t: t, arena: arena, calls: arena.Account("calls", o.accounts), p: fabrictest.NewLoopback(),
		loops: [2]*fabrictest.Loop{fabrictest.NewLoop(), fabrictest.NewLoop()}, endc: make(chan error, 1),
	}
	serving := p.loops[1]
	if o.responderLoop != nil {
		serving = o.responderLoop
	}
	p.serving = serving
	p.p.AsyncInvalidate(o.async)
	if o.handlerFor != nil {
		o.handler = o.handlerFor(p)
	}
	reg := newRegistry()
	o.requester.Memory, o.requester.Registry = arena.Account("replies", o.accounts), reg
	o.responder.Memory, o.responder.Registry = arena.Account("pulled", o.accounts), reg
	o.requester.Log, o.responder.Log = zerolog.Nop(), zerolog.Nop()
	s, err := NewResponder(responderOptions(o.responder), o.handler)
	if err != nil {
		t.Fatal(err)
	}
	p.l, err = p.p.Listen("", fabrictest.NoLimits(), func(in fabric.Incoming) {
		if _, err := s.Accept(context.Background(), in, serving); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.r, err = DialRequester(context.Background(), p.p, p.loops[0], p.l.Addr().String(), requesterOptions(o.requester), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// close closes the connection and asserts that all memory is released.
func (p *pairing) close() {
	p.t.Helper()
	p.loops[0].Do(func() { p.r.Close(nil) })
	select {
	case err := <-p.endc:
		if err != nil {
			p.t.Errorf("ended: %v", err)
		}
	case <-time.After(testkit.Patience):
		p.t.Fatal("Ended was not called")
	}
	_ = p.l.Close()
	if p.serving != p.loops[1] {
		p.serving.Do(func() {}) // its end of the connection has closed
	}
	p.loops[0].Stop()
	p.loops[1].Stop()
	if err := p.arena.Close(); err != nil {
		p.t.Error(err)
	}
}

// A scenario is a Call and its Reply, both made for an XID.
type scenario struct {
	call, reply []byte
}

func makeScenario(xid uint32) scenario {
	rng := rand.New(rand.NewPCG(uint64(xid), 7))
	size := func() int {
		switch rng.IntN(4) {
		case 0:
			return rng.IntN(64)
		case 1:
			return 900 + rng.IntN(300)
		case 2:
			return 3800 + rng.IntN(600)
		default:
			return rng.IntN(200_000)
		}
	}
	seed := byte(xid)
	switch rng.IntN(5) {
	case 0:
		return scenario{getAttrCall(xid), getAttrReply(xid)}
	case 1:
		n := size()
		got := n
		if rng.IntN(3) == 0 {
			got = rng.IntN(n + 1)
		}
		if rng.IntN(8) == 0 {
			return scenario{readCall(xid, n), accepted(xid, words(70, 0))}
		}
		m, _ := readReply(xid, pattern(got, seed))
		return scenario{readCall(xid, n), m}
	case 2:
		n := size()
		return scenario{writeCall(xid, pattern(n, seed)), accepted(xid, words(0), pattern(100, seed))}
	default:
		return scenario{opaqueCall(xid, size()&^3), accepted(xid, pattern(size()&^3, seed))}
	}
}

// A server checks Calls and answers them, in parts, some at once and some later.
type server struct {
	p   *pairing
	rng *rand.Rand
	bad atomic.Int32
}

func (s *server) Call(x *Exchange) {
	if s.rng.IntN(2) == 0 {
		s.answer(x)
		return
	}
	x.Conn().Loop().Post(loop.TaskFunc(func() { s.answer(x) }))
}

func (s *server) answer(x *Exchange) {
	sc := makeScenario(x.XID())
	if !bytes.Equal(x.Message(), sc.call) {
		s.bad.Add(1)
		s.p.t.Errorf("call %#x arrived as %d octets, sent %d", x.XID(), len(x.Message()), len(sc.call))
	}
	l, err := s.p.calls.Lease(len(sc.reply))
	if err != nil {
		s.p.t.Error(err)
		x.Abort()
		return
	}
	b := l.Bytes()
	copy(b, sc.reply)
	parts := [][]byte{b}
	if s.rng.IntN(3) == 0 && len(b) > 60 {
		c := 4 + s.rng.IntN(len(b)-8)
		parts = [][]byte{b[:4], nil, b[4:c], b[c:]}
	}
	switch s.rng.IntN(3) {
	case 0:
		x.Reply(parts, l)
	case 1:
		x.ReplyCopy(parts, l)
	default:
		if x.ReplyNow(b) {
			clear(b)
			l.Release()
			return
		}
		x.Reply(parts, l)
	}
}

// A client keeps as many Calls outstanding as it may.
type client struct {
	p      *pairing
	next   uint32
	last   uint32
	leases map[uint32]*regmem.Lease
	paused bool
	donec  chan struct{}
}

func (c *client) pump() {
	for c.next <= c.last && c.p.r.Free() > 0 {
		sc := makeScenario(c.next)
		l, err := c.p.calls.Lease(len(sc.call))
		if err != nil {
			c.p.t.Error(err)
			return
		}
		copy(l.Bytes(), sc.call)
		call := prepare(c.p.t, c.p.r, l.Bytes(), c)
		switch err := c.p.r.Send(call); err {
		case nil:
			c.leases[c.next] = l
			c.next++
		case ErrNoMemory:
			l.Release()
			if !c.paused {
				c.paused = true
				c.p.r.Wait(call, func() {
					c.p.r.Loop().Post(loop.TaskFunc(func() { c.paused = false; c.pump() }))
				})
			}
			return
		default:
			c.p.t.Errorf("Send: %v", err)
			return
		}
	}
}

func (c *client) CallDone(call *Call, err *CallError) {
	c.leases[call.XID].Release()
	delete(c.leases, call.XID)
	if err != nil {
		c.p.t.Errorf("%v", err)
	} else {
		if want, got := makeScenario(call.XID).reply, bytes.Join(call.Reply.Parts(), nil); !bytes.Equal(got, want) {
			c.p.t.Errorf("reply %#x arrived as %d octets, sent %d", call.XID, len(got), len(want))
		}
		// The handler may write to the first part.
		binary.BigEndian.PutUint32(call.Reply.Parts()[0], 0xdeadbeef)
		call.Reply.Release()
	}
	c.pump()
	if c.next > c.last && len(c.leases) == 0 {
		close(c.donec)
	}
}

// Calls and Replies of every shape and many sizes arrive as they were sent.
func TestBothByteIdentical(t *testing.T) {
	calls := uint32(600)
	if testing.Short() || testkit.RaceEnabled {
		calls = 200
	}
	for i, o := range []pairOptions{
		{},
		{async: true, requester: RequesterOptions{RemoteInvalidation: true, Credits: 16}, responder: ResponderOptions{RemoteInvalidation: true, ORD: 1}},
		{requester: RequesterOptions{RemoteInvalidation: true, CallInline: 1024, ReplyInline: 1024}, responder: ResponderOptions{RemoteInvalidation: true, Credits: 128}},
		{requester: RequesterOptions{CallInline: 65536, ReplyInline: 65536}, responder: ResponderOptions{CallInline: 65536, ReplyInline: 65536}},
		{accounts: 6 << 20, requester: RequesterOptions{Credits: 32}, responder: ResponderOptions{Credits: 32, MaxCall: 1 << 20}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var s *server
			o.handlerFor = func(p *pairing) CallHandler {
				s = &server{p: p, rng: rand.New(rand.NewPCG(uint64(i), 1))}
				return s
			}
			p := pair(t, o)
			first := uint32(i)<<20 + 1
			c := &client{p: p, next: first, last: first + calls - 1, leases: make(map[uint32]*regmem.Lease), donec: make(chan struct{})}
			p.loops[0].Do(c.pump)
			select {
			case <-c.donec:
			case <-time.After(testkit.Patience):
				p.loops[0].Do(func() { t.Errorf("stuck at call %d of %d, %d outstanding", c.next-first, calls, len(c.leases)) })
			}
			p.loops[0].Do(func() {})
			if n := p.p.Counts(p.r.conn); n.LowReceives < 0 || n.Handles != 0 {
				t.Errorf("%d live handles, at least %d Receives were posted", n.Handles, n.LowReceives)
			}
			p.close()
		})
	}
}

// A relay passes Calls from a Responder to a Requester, and their Replies back:
// RDMA on both sides.
type relay struct {
	t testing.TB
	r *Requester
}

type relayed struct {
	Call
	x *Exchange
}

func (y *relay) Call(x *Exchange) {
	c := &relayed{x: x}
	c.Call = *prepare(y.t, y.r, x.Message(), c)
	if err := y.r.Send(&c.Call); err != nil {
		y.t.Errorf("relay: %v", err)
		x.Abort()
	}
}

func (c *relayed) CallDone(call *Call, err *CallError) {
	if err != nil {
		c.x.Abort()
		return
	}
	c.x.Reply(call.Reply.Parts(), &call.Reply)
}

// Two hops over RDMA. The one in the middle copies nothing.
func TestBothRelay(t *testing.T) {
	var s *server
	far := pair(t, pairOptions{
		requester: RequesterOptions{RemoteInvalidation: true, Credits: 64},
		responder: ResponderOptions{RemoteInvalidation: true, Credits: 64, FirstCredits: 64},
		handlerFor: func(p *pairing) CallHandler {
			s = &server{p: p, rng: rand.New(rand.NewPCG(1, 1))}
			return s
		},
	})
	// There is one credit until the first Reply. Spend it here, or the relay's
	// first Calls find none.
	first := &flat{p: far, left: 1, donec: make(chan struct{}, 1)}
	first.calls = append(first.calls, prepare(t, far.r, makeScenario(1).call, first))
	far.loops[0].Do(first.pump)
	<-first.donec

	near := pair(t, pairOptions{
		requester: RequesterOptions{Credits: 32}, responder: ResponderOptions{Credits: 32},
		handler: &relay{t: t, r: far.r}, responderLoop: far.loops[0],
	})
	c := &client{p: near, next: 100, last: 500, leases: make(map[uint32]*regmem.Lease), donec: make(chan struct{})}
	near.loops[0].Do(c.pump)
	select {
	case <-c.donec:
	case <-time.After(testkit.Patience):
		t.Error("stuck")
	}
	near.close()
	far.close()
}

// A flat sends the same Call again and again.
type flat struct {
	p     *pairing
	left  int
	calls []*Call
	donec chan struct{}
}

func (f *flat) CallDone(c *Call, err *CallError) {
	if err != nil {
		f.p.t.Error(err)
	}
	c.Reply.Release()
	f.calls = append(f.calls, c)
	f.pump()
	if f.left == 0 && f.p.r.Outstanding() == 0 {
		f.donec <- struct{}{}
	}
}

func (f *flat) pump() {
	for f.left > 0 && f.p.r.Free() > 0 && len(f.calls) > 0 {
		c := f.calls[len(f.calls)-1]
		f.calls = f.calls[:len(f.calls)-1]
		if err := f.p.r.Send(c); err != nil {
			f.p.t.Error(err)
			return
		}
		f.left--
	}
}

// answering is a handler that answers from prepared memory, into which it puts
// the XID.
type answering struct {
	replies [][]byte
	next    int
	parts   [1][]byte
}

func (a *answering) Call(x *Exchange) {
	m := a.replies[a.next%len(a.replies)]
	a.next++
	binary.BigEndian.PutUint32(m, x.XID())
	a.parts[0] = m
	x.Reply(a.parts[:], nil)
}

// BenchmarkBoth measures both roles over the loopback provider, with 32 Calls
// outstanding.
func BenchmarkBoth(b *testing.B) {
	for _, tt := range []struct {
		name        string
		call, reply func(xid uint32) []byte
		octets      int64
	}{
		{"inline", getAttrCall, getAttrReply, 200},
		{
			"read64K", func(xid uint32) []byte { return readCall(xid, 64<<10) },
			func(xid uint32) []byte { m, _ := readReply(xid, pattern(64<<10, 1)); return m }, 64 << 10,
		},
		{
			"write64K", func(xid uint32) []byte { return writeCall(xid, pattern(64<<10, 1)) },
			func(xid uint32) []byte { return accepted(xid, words(0), pattern(100, 1)) }, 64 << 10,
		},
	} {
		b.Run(tt.name, func(b *testing.B) {
			h := &answering{}
			for range 128 {
				h.replies = append(h.replies, tt.reply(0))
			}
			p := pair(b, pairOptions{handler: h})
			f := &flat{p: p, donec: make(chan struct{}, 1)}
			for i := range uint32(32) {
				f.calls = append(f.calls, prepare(b, p.r, tt.call(i+1), f))
			}
			run := func(n int) {
				p.loops[0].Do(func() { f.left = n; f.pump() })
				<-f.donec
			}
			run(1) // the first Reply raises the grant
			b.SetBytes(tt.octets)
			b.ReportAllocs()
			b.ResetTimer()
			run(b.N)
			b.StopTimer()
			p.close()
		})
	}
}
