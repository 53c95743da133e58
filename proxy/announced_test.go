package proxy_test

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
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

// TestNamesClients: an upstream that is told who the clients are gets a connection for each, and each begins
// with the client's address: also the one that replaces another. The NULL Calls of the bridge, which no
// client uses, come from the bridge itself.
func TestNamesClients(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	far := h.Proxy([]settings.ListenerOptions{{
		Name: "far", Address: "127.0.0.1:0", Upstream: "storage",
		Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	}}, []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}}})
	near := proxytest.NewHarness(t, budget)
	p := near.Proxy([]settings.ListenerOptions{{
		Name: "near", Address: "127.0.0.1:0", Upstream: "far", Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	}}, []settings.UpstreamOptions{{Name: "far", Endpoints: []string{far.Addr("far")}, Mode: settings.ModePinned, NamesClients: true}})

	names := []string{"203.0.113.7:799", "203.0.113.7:800", "[2001:db8::1]:1023"}
	var clients []*proxytest.Client
	for i, a := range names {
		c := dialFor(t, p.Addr("near"), a)
		check(t, c, proxytest.GetattrCall(uint32(i)+1))
		clients = append(clients, c)
	}
	seen := func() (all map[string]bool, own int) {
		all = make(map[string]bool)
		for _, c := range far.Status(status.Query{Clients: 10}).Clients.List {
			if c.Proxy == "" {
				own++
				continue
			}
			all[c.Address] = true
		}
		return all, own
	}
	want := func(when string) {
		t.Helper()
		all, own := seen()
		for _, a := range names {
			if !all[a] {
				t.Errorf("%s: the far side does not see %s: %v", when, a, all)
			}
		}
		if len(all) != len(names) || own != 1 {
			t.Errorf("%s: the far side sees %v and %d connections of the bridge itself, want 1", when, all, own)
		}
	}
	want("at first")
	if n := metric(h, `listener_proxy_connections_total{address="proxy",listener="far"}`); n != 1 {
		t.Errorf("%d headers name no client, want that of the connection for NULL Calls", n)
	}

	// The far side closes all connections, and each is replaced.
	for who, want := range map[string]int{"203.0.113.7": 2, "2001:db8::1": 1} {
		if n, err := far.Disconnect(who, "test"); err != nil || n != want {
			t.Fatalf("%d connections of %s closed, want %d: %v", n, who, want, err)
		}
	}
	for i, c := range clients {
		check(t, c, proxytest.GetattrCall(uint32(i)+100))
	}
	h.Eventually("each client is seen again", func() bool { all, _ := seen(); return len(all) == len(names) })
	if n := metric(h, `listener_proxy_connections_total{address="client",listener="far"}`); n != 2*len(names) {
		t.Errorf("%d headers name a client, want %d", n, 2*len(names))
	}
	if n := metric(h, `listener_refused_connections_total{listener="far",reason="proxy_missing"}`); n != 0 {
		t.Errorf("%d connections begin without a header", n)
	}
}

// TestClientsOfProxies: a client of a proxy has its own address in everything that the bridge does.
func TestClientsOfProxies(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	listener := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage", MaxConnections: 4, MakeRoom: true}
	behind := listener
	behind.Name, behind.Proxies = "behind", []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	p := h.Proxy([]settings.ListenerOptions{listener, behind}, []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, SlowStart: 1024}})

	// The same Call of three clients has three XIDs: a port tells them apart as well. When a client comes through the
	// proxy again, the Call has the XID that it had: the server knows it.
	m := proxytest.MkdirCall(77, "a")
	again := dialFor(t, p.Addr("behind"), "203.0.113.7:799")
	check(t, again, m)
	again.Close()
	for _, a := range []string{"203.0.113.7:799", "203.0.113.8:799", "203.0.113.7:800"} {
		check(t, dialFor(t, p.Addr("behind"), a), m)
	}
	if n := s.XIDs(); len(n) != 3 {
		t.Errorf("the server sees %d XIDs, want those of three clients: %v", len(n), n)
	}
	h.Eventually("three are left", func() bool { return p.Status(status.Query{Clients: 10}).Clients.Shown == 3 })

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
