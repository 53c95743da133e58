package proxy_test

import (
	"crypto/tls"
	"net"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// announce connects to addr as a proxy does for client, and sends its header.
func announce(t *testing.T, addr, client string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h := proxyheader.AppendClient(nil, netip.MustParseAddrPort(client), netip.MustParseAddrPort("192.0.2.1:2049"))
	if _, err := c.Write(h); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTenantsOfProxies: a client of a proxy belongs to the tenant of the address in its header, whatever tenant
// the proxy belongs to, and counts for that address.
func TestTenantsOfProxies(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{
		Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage", Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	}}, []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
	if err := p.SetTenants([]admit.TenantOptions{
		{Name: "proxies", Clients: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Total: admit.TenantLimits{Connections: 1}},
		{Name: "a", Clients: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Total: admit.TenantLimits{Connections: 3}, Address: admit.TenantLimits{Connections: 2}},
		{Name: "b", Clients: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}},
	}); err != nil {
		t.Fatal(err)
	}
	xid := uint32(0)
	served := func(client string) bool {
		c := proxytest.NewClient(announce(t, p.Addr("nfs"), client))
		xid++
		_, err := c.Call(proxytest.GetattrCall(xid))
		return err == nil
	}
	for _, tt := range []struct {
		client string
		served bool
	}{
		{"203.0.113.7:1", true},
		{"203.0.113.7:2", true},
		{"203.0.113.7:3", false}, // a third connection of the address
		{"203.0.113.8:1", true},
		{"203.0.113.9:1", false}, // a fourth of the tenant
		{"[2001:db8::1]:1", true},
		{"[2001:db8::1]:2", true},
		{"198.51.100.1:1", true}, // belongs to none
	} {
		if got := served(tt.client); got != tt.served {
			t.Errorf("%s is served: %v, want %v", tt.client, got, tt.served)
		}
	}
	h.Eventually("the tenants count their clients", func() bool {
		d := p.Status(status.Query{}).Tenants
		return d[0].Clients == 0 && d[1].Clients == 3 && d[1].Addresses == 2 && d[1].Calls == 3 && d[2].Clients == 2 && d[2].Addresses == 1 && d[2].Calls == 2
	})
	d := p.Status(status.Query{}).Tenants
	if a := d[1].Refused; a["connections"] != 1 || a["connections_per_address"] != 1 || len(d[0].Refused)+len(d[2].Refused) != 0 {
		t.Errorf("refused: %v, %v, %v", d[0].Refused, a, d[2].Refused)
	}
}

// TestTLSBehindProxies: behind a PROXY header a client starts TLS, and then has the address of the header and the
// name of its certificate.
func TestTLSBehindProxies(t *testing.T) {
	t.Parallel()
	x := newSecurity(t)
	h, _ := logged(t)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{
		Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", TLS: x.listener(true), Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	}}, []settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	if err := p.SetTenants([]admit.TenantOptions{
		{Name: "named", Names: patterns(t, "named.example.com")},
		{Name: "network", Clients: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}},
	}); err != nil {
		t.Fatal(err)
	}
	secure := func(client, name string) *proxytest.Client {
		t.Helper()
		c, err := proxytest.StartTLS(announce(t, p.Addr("nfs"), client), x.user(x.issue(name)))
		if err != nil {
			t.Fatal(err)
		}
		return proxytest.NewClient(c)
	}
	check(t, secure("203.0.113.7:700", "other"), proxytest.GetattrCall(1))
	check(t, secure("203.0.113.7:701", "named"), proxytest.GetattrCall(2))
	d := p.Status(status.Query{Clients: 10})
	tenants := map[string]string{"203.0.113.7:700": "network", "203.0.113.7:701": "named"}
	for _, c := range d.Clients.List {
		if want, ok := tenants[c.Address]; !ok || c.Tenant != want || c.TLS == nil || c.Proxy == "" {
			t.Errorf("client %+v, want tenant %q, TLS and a proxy", c, want)
		}
	}
	if len(d.Clients.List) != 2 {
		t.Errorf("%d clients", len(d.Clients.List))
	}

	// A client that begins with TLS, or with its probe, has sent no header.
	for _, begins := range []func(net.Conn) error{
		func(c net.Conn) error { return tls.Client(c, x.user(x.issue("named"))).Handshake() },
		func(c net.Conn) error { _, err := proxytest.StartTLS(c, x.user(x.issue("named"))); return err },
	} {
		c, err := net.Dial("tcp", p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if begins(c) == nil {
			t.Error("a connection of the proxy without a header has TLS")
		}
	}
	h.Eventually("both are counted", func() bool {
		return metric(h, `listener_refused_connections_total{listener="nfs",reason="proxy_missing"}`) == 2
	})
	// A header inside TLS is no record.
	inside := proxytest.NewClient(announce(t, p.Addr("nfs"), "203.0.113.7:702"))
	if _, err := inside.Call(proxytest.GetattrCall(3)); err != nil {
		t.Errorf("a Call without TLS is to be refused, not its connection closed: %v", err)
	}
	second, err := proxytest.StartTLS(announce(t, p.Addr("nfs"), "203.0.113.7:703"), x.user(x.issue("named")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Write(proxyheader.AppendClient(nil, netip.MustParseAddrPort("203.0.113.9:1"), netip.MustParseAddrPort("192.0.2.1:2049"))); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a header inside TLS is answered")
	}
	h.Eventually("it is counted", func() bool {
		return metric(h, `listener_refused_connections_total{listener="nfs",reason="too_long"}`) == 1
	})
}
