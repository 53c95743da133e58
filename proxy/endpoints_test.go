package proxy_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// TestClientsStay: without failover a client belongs to one endpoint, on every
// connection, and no other serves it while that one is away.
func TestClientsStay(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var servers [3]*proxytest.TCPServer
	var endpoints []string
	for i := range servers {
		servers[i] = h.TCPServer(proxytest.Behaviour{})
		endpoints = append(endpoints, servers[i].Addr())
	}
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{
			Name: "storage", Endpoints: endpoints, Connections: 3, UnavailableAfter: 500 * time.Millisecond, BackoffMin: 5 * time.Millisecond,
			ProbeInterval: -1, // servers count probes
		}})
	h.Eventually("each endpoint has a connection", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 3 })
	for i := range 4 {
		c := h.Client(p.Addr("nfs"))
		check(t, c, proxytest.GetattrCall(uint32(i+1)))
		check(t, c, proxytest.SequenceCall(uint32(i+100))) // one of its own
	}
	home := -1
	for i, s := range servers {
		switch n := s.Calls.Load(); {
		case n == 8 && home < 0:
			home = i
		case n != 0:
			t.Errorf("server %d has %d Calls; want 8 at one of them", i, n)
		}
	}
	if home < 0 {
		t.Fatal("no server has all Calls")
	}
	servers[home].Close()
	c := h.Client(p.Addr("nfs"))
	if _, err := c.Call(proxytest.GetattrCall(1)); err == nil {
		t.Error("another endpoint serves a client whose own is away")
	}
	for i, s := range servers {
		if i != home && s.Calls.Load() != 0 {
			t.Errorf("server %d has Calls of a client that is not its", i)
		}
	}
}

// connectedTo returns how many connections of the first upstream of p are up and go to endpoint.
func connectedTo(p *proxy.Proxy, endpoint string) (n int) {
	for _, s := range p.Status(status.Query{Connections: true}).Upstreams[0].Connections {
		if s.State == status.ConnectionUp && s.Endpoint == endpoint {
			n++
		}
	}
	return n
}

// TestFailover: the first endpoint's host vanishes under Calls. They go to the next
// without an attempt at the first that nobody would answer, and go home when it is back.
func TestFailover(t *testing.T) {
	testkit.NeedsFilter(t)
	t.Parallel()
	x := proxytest.NewHarness(t, budget)
	first, second := x.TCPServer(proxytest.Behaviour{Delay: 500 * time.Millisecond}), x.TCPServer(proxytest.Behaviour{})
	relay := proxytest.NewRelay(t, first.Addr())
	p := x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{
			Name: "storage", Endpoints: []string{relay.Addr(), second.Addr()}, Failover: true, Priority: true, Connections: 2,
			SilentTimeout: 4 * time.Second, ConnectTimeout: 30 * time.Second, BackoffMin: 10 * time.Millisecond,
		}})
	x.Eventually("both connections are there", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 2 })
	c := x.Client(p.Addr("nfs"))
	check(t, c, proxytest.GetattrCall(1))
	if second.Calls.Load() != 0 {
		t.Error("the second endpoint is used though the first is well")
	}
	relay.Vanish(true)
	began := time.Now()
	var wg sync.WaitGroup
	burst(t, &wg, c, 10, 8)
	wg.Wait()
	if d := time.Since(began); d >= 30*time.Second {
		t.Errorf("answered after %v: an attempt at the first has gone before", d)
	}
	if n := second.Calls.Load(); n != 8 {
		t.Errorf("the second endpoint had %d Calls, want 8", n)
	}
	if n := metric(x, `upstream_ejected_endpoints{upstream="storage"}`); n != 1 {
		t.Errorf("%d endpoints ejected, want 1", n)
	}
	relay.Return()
	relay.Forget()
	x.Eventually("the connections are home", func() bool {
		return connectedTo(p, relay.Addr()) == 2 && metric(x, `upstream_ejected_endpoints{upstream="storage"}`) == 0
	})
	check(t, c, proxytest.GetattrCall(30))
	if n := first.Calls.Load(); n < 2 {
		t.Error("the first endpoint is not used again")
	}
}

// TestShutEndpoint: an endpoint that ends each connection when it gets the first Call, such as a load balancer
// without servers, takes no Calls from one that works.
func TestShutEndpoint(t *testing.T) {
	t.Parallel()
	x := proxytest.NewHarness(t, budget)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var ended atomic.Int32
	go func() {
		for nc, err := l.Accept(); err == nil; nc, err = l.Accept() {
			_ = nc.SetReadDeadline(time.Now().Add(testkit.Patience))
			_, _ = testkit.ReadRecord(nc)
			nc.Close()
			ended.Add(1)
		}
	}()
	second := x.TCPServer(proxytest.Behaviour{})
	p := x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{
			Name: "storage", Endpoints: []string{l.Addr().String(), second.Addr()}, Failover: true, Priority: true, Connections: 2,
			BackoffMin: 10 * time.Millisecond,
		}})
	there := func() bool { return connectedTo(p, second.Addr()) == 2 }
	x.Eventually("both connections are at the second endpoint", there)
	c := x.Client(p.Addr("nfs"))
	attempts, conns, i := ended.Load(), second.Conns(), uint32(1)
	x.Eventually("the first endpoint is tried again and again", func() bool {
		check(t, c, proxytest.GetattrCall(i))
		i++
		return ended.Load() >= attempts+3
	})
	if !there() || !slices.Equal(second.Conns(), conns) {
		t.Error("a connection has left the endpoint that works")
	}
}

// A countingProvider counts attempts to connect.
type countingProvider struct {
	fabric.Provider
	slow time.Duration

	mu              sync.Mutex
	now, most, made int
}

func (p *countingProvider) Dial(ctx context.Context, l loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	p.mu.Lock()
	p.now++
	p.made++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.now--
	}()
	time.Sleep(p.slow) // how long a server takes to accept
	return p.Provider.Dial(ctx, l, addr, o, h)
}

// TestReconnectStorm: clients with connections of their own lose them all at once.
// They connect again a few at a time, and every client is served.
func TestReconnectStorm(t *testing.T) {
	t.Parallel()
	const clients = 150
	lp := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	counting := &countingProvider{Provider: lp, slow: 50 * time.Millisecond}
	x := pinningOver(t, 512<<20, counting, lp, l, "storage", proxytest.Behaviour{}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.Mode, u.Credits = settings.ModePinned, 8
	})
	var cs []*proxytest.Client
	for range clients {
		cs = append(cs, x.client())
	}
	all := func() {
		var wg sync.WaitGroup
		for _, c := range cs {
			wg.Go(func() { check(t, c, proxytest.GetattrCall(1)) })
		}
		wg.Wait()
	}
	all()
	x.server.DropConnections(errors.New("dropped by the test"))
	all()
	counting.mu.Lock()
	defer counting.mu.Unlock()
	if counting.made < 2*clients {
		t.Errorf("%d attempts to connect for %d clients, twice", counting.made, clients)
	}
	if counting.most > 32 {
		t.Errorf("%d attempts to connect at a time, want 32 at most", counting.most)
	}
}
