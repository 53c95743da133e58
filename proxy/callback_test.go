package proxy_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A caller is a client on either transport.
type caller interface {
	Call(m []byte) ([]byte, error)
	Go(m []byte) (<-chan []byte, error)
	Send(m []byte) error
	NextCall(wait time.Duration) ([]byte, error)
	Close() error
}

// A backend is one connection of a server on either transport.
type backend interface {
	Call(m []byte, credits uint32)
	Next(wait time.Duration) ([]byte, error)
	Drop(err error)
}

// A pair is a proxy between a client on one transport and a server on another.
type pair struct {
	*proxytest.Harness
	p            *proxy.Proxy
	front, back  string // tcp or rdma
	client       func() caller
	conns        func() []backend // of the server, the shared ones first
	served       *proxytest.Served
	drop         func()
	clientThings string // the beginning of the names of the metrics of either side
	serverThings string
}

// A side is a transport of a pair.
type side struct {
	name     string
	provider fabric.Provider // nil over TCP
	loop     func(t *testing.T) loop.Loop
	addr     string // "here" in memory
	secure   bool   // over TCP: with TLS
}

func tcpSide() side { return side{name: "tcp"} }

func tlsSide() side { return side{name: "tls", secure: true} }

func loopbackSide() side {
	return side{"loopback", fabrictest.NewLoopback(), func(t *testing.T) loop.Loop {
		l := fabrictest.NewLoop()
		t.Cleanup(l.Stop)
		return l
	}, "here", false}
}

func iwarpSide(o iwarp.Options) side {
	return side{"iwarp", proxytest.IWARP(o), func(t *testing.T) loop.Loop {
		l := iwarptest.NewLoop()
		t.Cleanup(l.Stop)
		return l
	}, "127.0.0.1:0", false}
}

// pairs runs f for every pair of transports, with a provider for each side.
func pairs(t *testing.T, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions), f func(t *testing.T, x *pair)) {
	for _, p := range [][2]side{
		{tcpSide(), tcpSide()},
		{tcpSide(), loopbackSide()},
		{loopbackSide(), tcpSide()},
		{loopbackSide(), loopbackSide()},
		{iwarpSide(iwarp.Options{}), tcpSide()},
		{tcpSide(), iwarpSide(iwarp.Options{})},
		{iwarpSide(iwarp.Options{FPDU: iwarp.FPDUMax}), iwarpSide(iwarp.Options{CRCOff: true})},
		{iwarpSide(iwarp.Options{}), loopbackSide()},
		{tlsSide(), tlsSide()},
		{tlsSide(), loopbackSide()},
		{loopbackSide(), tlsSide()},
	} {
		t.Run(p[0].name+" to "+p[1].name, func(t *testing.T) {
			t.Parallel()
			f(t, newPair(t, p[0], p[1], b, change))
		})
	}
}

func newPair(t *testing.T, front, back side, b proxytest.Behaviour, change func(*settings.ListenerOptions, *settings.UpstreamOptions)) *pair {
	t.Helper()
	x := &pair{Harness: proxytest.NewHarness(t, budget), front: "tcp", back: "tcp", serverThings: "upstream_reverse", clientThings: "none"}
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
	uo := settings.UpstreamOptions{
		Name: "storage", Connections: shared, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, Mode: settings.ModePinned,
	}
	if back.provider != nil {
		x.back, x.serverThings = "rdma", "upstream_reverse"
		uo.RDMA, uo.Provider, uo.Endpoints = true, back.provider, []string{x.serveRDMA(t, back, b)}
	} else {
		uo.Endpoints = []string{x.serveTCP(b)}
	}
	if front.provider != nil {
		x.front, x.clientThings = "rdma", "listener_reverse"
		lo.RDMA, lo.Provider, lo.Address = true, front.provider, front.addr
	}
	var files *security
	if front.secure || back.secure {
		files = newSecurity(t)
	}
	if front.secure {
		lo.TLS = files.listener(true)
	}
	if back.secure {
		uo.TLS = files.upstream(true)
		storage := files.storage(files.servers.Issue(t, tlstest.Subject{Names: []string{"127.0.0.1"}}))
		uo.Endpoints = []string{x.TLSFront(uo.Endpoints[0], func() *tls.Config { return storage }).Addr()}
	}
	if change != nil {
		change(&lo, &uo)
	}
	x.p = x.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo})
	addr := x.p.Addr("nfs")
	if front.secure {
		user := files.user(files.issue("user"))
		x.client = func() caller { return x.SecureClient(addr, user) }
	} else if front.provider == nil {
		x.client = func() caller { return x.Client(addr) }
	} else {
		l := front.loop(t)
		if front.addr == "here" {
			addr = "here"
		}
		x.client = func() caller { return x.RDMAClient(front.provider, l, addr, 16) }
	}
	x.Eventually("all shared connections are there", func() bool {
		return x.p.Status(status.Query{}).Upstreams[0].Usable == shared && len(x.conns()) == shared
	})
	return x
}

// serveRDMA starts the server of x over RDMA, and returns its address.
func (x *pair) serveRDMA(t *testing.T, back side, b proxytest.Behaviour) string {
	t.Helper()
	cb := proxytest.NewCallbacks(back.provider)
	addr := back.addr
	if addr == "here" {
		addr = "there" // the proxy may listen here
	}
	s := x.RDMAServer(cb, []loop.Loop{back.loop(t)}, addr, 32, b)
	x.served, x.drop = &s.Served, func() { s.DropConnections(errors.New("dropped by the test")) }
	x.conns = func() (bs []backend) {
		for _, c := range cb.Conns() {
			bs = append(bs, rdmaBackend{c})
		}
		return bs
	}
	if addr == "there" {
		return addr
	}
	return s.Addr()
}

// serveTCP starts the server of x over TCP, and returns its address.
func (x *pair) serveTCP(b proxytest.Behaviour) string {
	s := x.TCPServer(b)
	x.served, x.drop = &s.Served, s.DropConnections
	x.conns = func() (bs []backend) {
		for _, c := range s.Conns() {
			bs = append(bs, c)
		}
		return bs
	}
	return s.Addr()
}

// An rdmaBackend is a Callback whose messages are without their headers.
type rdmaBackend struct{ *proxytest.Callback }

func (c rdmaBackend) Next(wait time.Duration) ([]byte, error) {
	b, err := c.Callback.Next(wait)
	if err != nil {
		return nil, err
	}
	if _, _, plain := rpcrdma.ParsePlain(b); !plain {
		return nil, fmt.Errorf("not RDMA_MSG without chunks: %x", b)
	}
	return b[rpcrdma.PlainLen:], nil
}

func (x *pair) pinned() int { return x.p.Status(status.Query{}).Upstreams[0].Pinned }

// open is a client that has a connection of its own, and that connection.
func (x *pair) open() (caller, backend) {
	x.T.Helper()
	n := len(x.conns())
	c := x.client()
	x.check(c, proxytest.SequenceCall(1))
	x.Eventually("there is a connection more", func() bool { return len(x.conns()) == n+1 })
	return c, x.conns()[n]
}

// check calls and compares.
func (x *pair) check(c caller, m []byte) {
	x.T.Helper()
	r, err := c.Call(m)
	if err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
		x.T.Fatalf("a Call of %d octets was answered %d octets, %v", len(m), len(r), err)
	}
}

func (x *pair) called(c caller, want []byte) {
	x.T.Helper()
	if got, err := c.NextCall(patience); err != nil || !bytes.Equal(got, want) {
		x.T.Fatalf("the client was called with %x, %v; want %x", got, err, want)
	}
}

func (x *pair) answered(b backend, why string, want []byte) {
	x.T.Helper()
	if got, err := b.Next(patience); err != nil || !bytes.Equal(got, want) {
		x.T.Fatalf("%s: the server got %x, %v; want %x", why, got, err, want)
	}
}

func (x *pair) send(c caller, m []byte) {
	x.T.Helper()
	if err := c.Send(m); err != nil {
		x.T.Fatal(err)
	}
}

func refusal(xid, stat uint32) []byte { return oncrpc.AppendAccepted(nil, xid, stat) }

// TestPairsPinned: on every pair of transports mode pinned gives a client a connection of its own,
// which ends with the client. Modes shared and auto do not.
func TestPairsPinned(t *testing.T) {
	for _, tt := range []struct {
		name string
		mode settings.Mode
		call []byte
		want int
	}{
		{"auto, NFSv3", settings.ModeAuto, proxytest.GetattrCall(1), 0},
		{"auto, NFSv4.0", settings.ModeAuto, proxytest.CompoundCall(1, 0), 0},
		{"shared, NFSv4.1", settings.ModeShared, proxytest.CompoundCall(1, 1), 0},
		{"pinned, NFSv3", settings.ModePinned, proxytest.GetattrCall(1), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pairs(t, proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Mode = tt.mode }, func(t *testing.T, x *pair) {
				c := x.client()
				for range 3 {
					x.check(c, tt.call)
				}
				if n := x.pinned(); n != tt.want {
					t.Errorf("%d connections of the client's own, want %d", n, tt.want)
				}
				x.Eventually("the server has as many", func() bool { return len(x.conns()) == shared+tt.want })
				c.Close()
				x.Eventually("it has gone", func() bool { return x.pinned() == 0 && len(x.conns()) == shared })
			})
		})
	}
}

// TestPairsLimit: a client more than may be is closed.
func TestPairsLimit(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) { u.Pinned = 2 }, func(t *testing.T, x *pair) {
		first, _ := x.open()
		second, _ := x.open()
		for range 3 {
			if _, err := x.client().Call(proxytest.SequenceCall(1)); err == nil || errors.Is(err, proxytest.ErrTimeout) {
				t.Errorf("a third client of 2: %v, want its connection closed", err)
			}
		}
		if n := metric(x.Harness, "upstream_pinned_refused_clients_total"); n != 3 {
			t.Errorf("%d refusals counted, want 3", n)
		}
		first.Close()
		x.Eventually("there is room", func() bool { return x.pinned() == 1 && len(x.conns()) == shared+1 })
		x.open()
		x.check(second, proxytest.SequenceCall(2))
	})
}

// TestPairsLost: when the connection of a client's own is lost, its NFSv4.1 Calls are
// sent again on the next, and the client notices nothing.
func TestPairsLost(t *testing.T) {
	pairs(t, proxytest.Behaviour{Delay: 20 * time.Millisecond}, nil, func(t *testing.T, x *pair) {
		c, _ := x.open()
		for round := range uint32(5) {
			var got []<-chan []byte
			var want [][]byte
			before := x.served.Calls.Load()
			for i := range uint32(10) {
				m := proxytest.SequenceCall(round<<8 | i | 1<<16)
				ch, err := c.Go(m)
				if err != nil {
					t.Fatal(err)
				}
				got, want = append(got, ch), append(want, proxytest.Expected(m))
			}
			x.Eventually("they are at the server", func() bool { return x.served.Calls.Load() > before })
			x.drop()
			for i, ch := range got {
				if r := <-ch; !bytes.Equal(r, want[i]) {
					t.Fatalf("a Call was answered with %d octets, want %d", len(r), len(want[i]))
				}
			}
		}
		if n := metric(x.Harness, "upstream_replays_total"); n == 0 {
			t.Error("nothing was replayed: this tests nothing")
		}
	})
}

// TestCallbacks: a server calls its client, whatever transports they use.
func TestCallbacks(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, nil, func(t *testing.T, x *pair) {
		c, back := x.open()
		for xid, n := range []int{0, 1, 100, 1000, 3900} {
			m, r := proxytest.CallbackCall(uint32(xid), n), proxytest.CallbackReply(uint32(xid), n)
			back.Call(m, 2)
			x.called(c, m)
			x.send(c, r)
			x.answered(back, "a Reply as it was", r)
		}
		// With Calls of both directions outstanding under one XID.
		forward, reverse := proxytest.EchoCall(77, 10, 10, 300), proxytest.CallbackCall(77, 8)
		ch, err := c.Go(forward)
		if err != nil {
			t.Fatal(err)
		}
		back.Call(reverse, 2)
		x.called(c, reverse)
		x.send(c, proxytest.CallbackReply(77, 8))
		x.answered(back, "the reverse Call", proxytest.CallbackReply(77, 8))
		if r := <-ch; !bytes.Equal(r, proxytest.Expected(forward)) {
			t.Error("the forward Call was not answered with its Reply")
		}
		// Four at once, answered the other way round.
		for xid := range uint32(4) {
			back.Call(proxytest.CallbackCall(xid+100, 8), 4)
		}
		for xid := range uint32(4) {
			x.called(c, proxytest.CallbackCall(xid+100, 8))
		}
		for xid := range uint32(4) {
			x.send(c, proxytest.CallbackReply(103-xid, 8))
			x.answered(back, "in the client's order", proxytest.CallbackReply(103-xid, 8))
		}
		for _, name := range []string{x.serverThings, x.clientThings} {
			if name == "none" {
				continue
			}
			for _, what := range []string{"_calls_total", "_replies_total"} {
				if n := metric(x.Harness, name+what); n != 10 {
					t.Errorf("%s%s is %d, want 10", name, what, n)
				}
			}
		}
	})
}

// TestCallbacksInNumbers: a TCP server has no credits to keep to; its Calls wait
// for those of the client.
func TestCallbacksInNumbers(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, nil, func(t *testing.T, x *pair) {
		c, back := x.open()
		n := 40
		if x.back == "rdma" {
			n = 4 // its grant
		}
		for round := range uint32(10) {
			for i := range n {
				back.Call(proxytest.CallbackCall(round<<8|uint32(i), 500), 4)
			}
			seen := make(map[string]bool)
			for range n {
				m, err := c.NextCall(patience)
				if err != nil {
					t.Fatal(err)
				}
				xid, _, _ := oncrpc.MessageType(m)
				if !bytes.Equal(m, proxytest.CallbackCall(xid, 500)) || seen[string(m[:4])] {
					t.Fatalf("the client was called with %x", m)
				}
				seen[string(m[:4])] = true
				x.send(c, proxytest.CallbackReply(xid, 12))
			}
			for range n {
				m, err := back.Next(patience)
				if err != nil {
					t.Fatal(err)
				}
				xid, _, _ := oncrpc.MessageType(m)
				if !bytes.Equal(m, proxytest.CallbackReply(xid, 12)) || !seen[string(m[:4])] {
					t.Fatalf("the server was answered %x", m)
				}
				delete(seen, string(m[:4]))
			}
		}
	})
}

// TestCallbacksOfSharedConnections: the proxy refuses Calls on a shared connection, which
// belongs to no client.
func TestCallbacksOfSharedConnections(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, nil, func(t *testing.T, x *pair) {
		// Over iWARP the side that has dialled speaks first.
		var wg sync.WaitGroup
		for i := range uint32(shared) {
			c := x.client()
			wg.Go(func() { x.check(c, proxytest.EchoCall(i+1, 4, 4, 300)) })
		}
		wg.Wait()
		back := x.conns()[0]
		for range 3 {
			back.Call(proxytest.CallbackCall(5, 8), 2)
			x.answered(back, "on a shared connection", refusal(5, oncrpc.ProgramUnavailable))
		}
	})
}

// TestCallbackRefusals: the proxy refuses messages that it cannot carry, and goes on.
func TestCallbackRefusals(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, func(l *settings.ListenerOptions, u *settings.UpstreamOptions) {
		l.ReplyInline, u.ReplyInline = 2048, 4096
	}, func(t *testing.T, x *pair) {
		c, back := x.open()
		long := proxytest.CallbackCall(1, 3000)
		back.Call(long, 2)
		if x.front == "rdma" {
			x.answered(back, "a Call that does not fit", refusal(1, oncrpc.SystemError))
			if n := metric(x.Harness, `listener_reverse_refused_calls_total{listener="nfs",reason="too_long"`); n != 1 {
				t.Errorf("%d too long, want 1", n)
			}
		} else {
			x.called(c, long)
			x.send(c, proxytest.CallbackReply(1, 0))
			x.answered(back, "a long one", proxytest.CallbackReply(1, 0))
		}
		// Messages that are no Call, or no Reply.
		if s, ok := back.(*proxytest.TCPConn); ok {
			s.Send(proxytest.CallbackCall(2, 0)[:20])
			s.Send(testkit.Words(2, 7, 0, 0))
		}
		m := proxytest.CallbackCall(3, 8)
		back.Call(m, 2)
		x.called(c, m)
		if x.front == "tcp" { // an RDMA client of the tests does not send such a thing
			x.send(c, proxytest.CallbackReply(3, 8)[:12])
			x.answered(back, "an answer cut short", refusal(3, oncrpc.SystemError))
			x.send(c, proxytest.CallbackReply(3, 8))
		} else {
			x.send(c, proxytest.CallbackReply(3, 8))
			x.answered(back, "its answer", proxytest.CallbackReply(3, 8))
		}
		x.check(c, proxytest.SequenceCall(2))
		// The server's next message is the answer to its next Call, and not the stray Reply.
		m = proxytest.CallbackCall(4, 8)
		back.Call(m, 2)
		x.called(c, m)
		x.send(c, proxytest.CallbackReply(4, 8))
		x.answered(back, "after a stray Reply", proxytest.CallbackReply(4, 8))
	})
}

// TestCallbacksUnanswered: Calls that a client does not answer are forgotten when there
// are too many, and when the client goes.
func TestCallbacksUnanswered(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, nil, func(t *testing.T, x *pair) {
		c, back := x.open()
		const n = 200
		for xid := range uint32(n) {
			back.Call(proxytest.CallbackCall(xid, 8), 2)
		}
		x.check(c, proxytest.SequenceCall(2))
		if x.back == "tcp" && x.front == "tcp" {
			x.Eventually("those that are too many are forgotten", func() bool {
				return metric(x.Harness, "upstream_reverse_unanswered_calls_total")+metric(x.Harness, "upstream_reverse_refused_calls_total") == n-64
			})
		}
		c.Close()
		x.Eventually("nothing is left", func() bool { return x.pinned() == 0 && len(x.conns()) == shared })
	})
}

// TestCallbacksUnread: a TCP server's Calls to a client that does not read are bounded in
// octets, and the proxy refuses the rest.
func TestCallbacksUnread(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Mode: settings.ModePinned}})
	used := h.Arena.Stats().Used
	c := unread(h, p.Addr("nfs"), func() int64 { return s.Calls.Load() })
	defer c.Close()
	h.Eventually("it has a connection of its own", func() bool { return len(s.Conns()) == 2 })
	back := s.Conns()[1]
	const size, room = 100_000, 1 << 20 / 100_000
	for xid := range uint32(room + 5) {
		back.Call(proxytest.CallbackCall(xid, size), 0)
	}
	for xid := uint32(room); xid < room+5; xid++ {
		if got, err := back.Next(patience); err != nil || !bytes.Equal(got, refusal(xid, oncrpc.SystemError)) {
			t.Fatalf("call %d, beyond what may wait: %x, %v; want SYSTEM_ERR", xid, got, err)
		}
	}
	c.Close()
	h.Eventually("nothing is left", func() bool {
		return p.Status(status.Query{}).Upstreams[0].Pinned == 0 && h.Arena.Stats().Used <= used+64<<10
	})
	if n := metric(h, "upstream_reverse_unanswered_calls_total"); n != room {
		t.Errorf("%d unanswered counted, want the %d that were taken", n, room)
	}
}

// TestCallbackEnds: Calls that are outstanding end with either side.
func TestCallbackEnds(t *testing.T) {
	pairs(t, proxytest.Behaviour{}, nil, func(t *testing.T, x *pair) {
		used := x.Arena.Stats().Used
		c, back := x.open()
		// The server's: the answer comes too late, and not to the next connection.
		m := proxytest.CallbackCall(9, 8)
		back.Call(m, 2)
		x.called(c, m)
		back.Drop(errors.New("dropped by the test"))
		x.Eventually("there is a new connection", func() bool {
			conns := x.conns()
			return len(conns) == shared+1 && conns[shared] != back
		})
		next := x.conns()[shared]
		x.check(c, proxytest.SequenceCall(2))
		if x.front == "rdma" { // the Call from before holds the client's credit
			x.send(c, proxytest.CallbackReply(9, 8))
		}
		m = proxytest.CallbackCall(10, 8)
		next.Call(m, 2)
		x.called(c, m)
		if x.front != "rdma" {
			x.send(c, proxytest.CallbackReply(9, 8))
		}
		x.send(c, proxytest.CallbackReply(10, 8))
		x.answered(next, "after an answer to the connection before", proxytest.CallbackReply(10, 8))
		// The client's, with more than it has credits for.
		for xid := range uint32(30) {
			next.Call(proxytest.CallbackCall(xid+20, 8), 2)
		}
		if _, err := c.NextCall(patience); err != nil {
			t.Fatal(err)
		}
		c.Close()
		for {
			b, err := next.Next(patience)
			if errors.Is(err, proxytest.ErrEnded) {
				break
			}
			// Refusals of Calls beyond an RDMA server's grant.
			if err != nil || x.back != "rdma" || !bytes.HasSuffix(b, testkit.Words(oncrpc.SystemError)) {
				t.Fatalf("after the client has gone the server got %x, %v; want the end of the connection", b, err)
			}
		}
		x.Eventually("nothing is left", func() bool { return x.pinned() == 0 })
		x.Eventually("all memory is back", func() bool { return x.Arena.Stats().Used <= used+64<<10 })
	})
}
