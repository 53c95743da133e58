package proxy_test

import (
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// TestLaneChain: clients on TCP, a bridge to another bridge over RDMA, and from there to a server over
// TCP, both with lanes. The second bridge has clients with the sessions of many hosts on one
// connection. Callbacks go all the way back, also after the connection between the bridges has been
// dropped.
func TestLaneChain(t *testing.T) {
	t.Parallel()
	laneChain(t, func() (settings.ListenerOptions, settings.UpstreamOptions) {
		return settings.ListenerOptions{RDMA: true, Provider: proxytest.IWARP(iwarp.Options{})}, settings.UpstreamOptions{RDMA: true, Provider: proxytest.IWARP(iwarp.Options{})}
	})
}

// TestLaneChainTLS: the same, with TLS between the bridges.
func TestLaneChainTLS(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	laneChain(t, func() (settings.ListenerOptions, settings.UpstreamOptions) {
		return settings.ListenerOptions{TLS: x.listener(true)}, settings.UpstreamOptions{TLS: x.upstream(true)}
	})
}

// laneChain is TestLaneChain with the far bridge's listener and the near bridge's upstream of between.
func laneChain(t *testing.T, between func() (settings.ListenerOptions, settings.UpstreamOptions)) {
	const clients, lanes = 24, 2
	first, second := proxytest.NewHarness(t, budget), proxytest.NewHarness(t, budget)
	s := nfs4test.NewServer(nfs4test.ServerOptions{CallbackDelay: 20 * time.Millisecond})
	t.Cleanup(s.Close)
	addr, err := s.ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	uo := settings.UpstreamOptions{Name: "storage", Connections: lanes, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond}
	back := uo
	back.Endpoints, back.Source = []string{addr}, ownPorts
	lo, middle := between()
	lo.Name, lo.Address, lo.Upstream = "middle", "127.0.0.1:0", "storage"
	p2 := second.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{back})
	relay := proxytest.NewRelay(t, p2.Addr("middle"))
	uo.RDMA, uo.Provider, uo.TLS, uo.Endpoints = middle.RDMA, middle.Provider, middle.TLS, []string{relay.Addr()}
	p1 := first.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{uo})
	e, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: first.Log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	co := nfs4test.ClientsOptions{Target: p1.Addr("nfs"), Prefix: "host", Renew: -1, Retry: 5 * time.Millisecond}
	for _, l := range e.Loops() {
		co.Loops = append(co.Loops, loop.SocketLoop(l))
	}
	x := &laneWorld{Harness: first, p: p1, s: s, cs: nfs4test.NewClients(clients, co)}
	t.Cleanup(x.cs.Close)
	x.cs.Start()
	x.allUp()
	x.work(4, nfs4test.OpGetattr, 20)
	x.work(2, 20000, 5)
	token := uint64(0)
	callAll := func() {
		for i := range clients {
			token++
			x.called(i, token)
		}
	}
	callAll()
	l := x.cs.Load(x.every(), 2, nfs4test.OpGetattr)
	for range 3 {
		n, lost := l.Replies.Load(), x.cs.Lost.Load()
		relay.Drop()
		x.eventually("work goes on", func() bool {
			return l.Replies.Load() > n+20*clients && x.cs.Lost.Load() > lost && x.cs.Up() == clients
		})
	}
	l.Stop()
	for i := range clients {
		x.cs.Renew(i)
	}
	x.allUp()
	callAll()
	if n := s.Created.Load(); n != clients {
		t.Errorf("%d sessions, want one for each of %d clients", n, clients)
	}
	if _, n := s.Connections(); n > most(lanes)+2 {
		t.Errorf("the server had up to %d connections", n)
	}
}
