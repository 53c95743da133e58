package proxy_test

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
)

// dialFor connects to addr as a proxy does for client, in a header of its own.
func dialFor(t *testing.T, addr, client string) *proxytest.Client {
	t.Helper()
	c, err := proxytest.DialClient(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h := proxyheader.AppendClient(nil, netip.MustParseAddrPort(client), netip.MustParseAddrPort("192.0.2.1:2049"))
	if _, err := c.Conn.Write(h); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClientsOfProxies: a client of a proxy has its own address in everything that the bridge does.
func TestClientsOfProxies(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	listener := proxy.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage", MaxConnections: 4, MakeRoom: true}
	behind := listener
	behind.Name, behind.Proxies = "behind", []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	p := h.Proxy([]proxy.ListenerOptions{listener, behind}, []proxy.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, SlowStart: 1024}})

	// The same Call of two clients has two XIDs. When a client comes through the proxy again, the Call has
	// the XID that it had: the server knows it.
	m := proxytest.MkdirCall(77, "a")
	for _, a := range []string{"203.0.113.7:799", "203.0.113.8:799", "203.0.113.7:800"} {
		check(t, dialFor(t, p.Addr("behind"), a), m)
	}
	if n := s.XIDs(); len(n) != 2 {
		t.Errorf("the server sees %d XIDs, want those of two clients: %v", len(n), n)
	}

	d := p.Status(status.Query{Clients: 10})
	seen := make(map[string]int)
	for _, c := range d.Clients.List {
		a, err := netip.ParseAddrPort(c.Address)
		via, err2 := netip.ParseAddrPort(c.Proxy)
		if err != nil || err2 != nil || via.Addr() != netip.MustParseAddr("127.0.0.1") || via == a {
			t.Errorf("client %q of proxy %q", c.Address, c.Proxy)
		}
		seen[a.Addr().String()]++
	}
	if len(d.Clients.List) != 3 || seen["203.0.113.7"] != 2 || seen["203.0.113.8"] != 1 {
		t.Errorf("clients %v", seen)
	}

	// Eviction counts clients, not the proxy: the one with three connections gives way.
	check(t, dialFor(t, p.Addr("behind"), "203.0.113.7:801"), proxytest.GetattrCall(1))
	check(t, dialFor(t, p.Addr("behind"), "203.0.113.9:1"), proxytest.GetattrCall(1))
	h.Eventually("a connection of the largest client is closed", func() bool {
		return metric(h, `listener_evicted_clients_total{listener="behind"}`) == 1 && p.Status(status.Query{Clients: 10}).Clients.Shown == 4
	})

	// A client that comes without a proxy has no proxy.
	check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
	for _, c := range p.Status(status.Query{Clients: 10}).Clients.List {
		if c.Listener == "nfs" && c.Proxy != "" {
			t.Errorf("the client %s has come by itself, not through %s", c.Address, c.Proxy)
		}
	}
}
