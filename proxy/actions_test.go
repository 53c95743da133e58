package proxy_test

import (
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// TestEject: an endpoint that an operator ejects loses its connections and gets them back, and the last one
// stays.
func TestEject(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	a, b := h.TCPServer(proxytest.Behaviour{}), h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{a.Addr(), b.Addr()}, Failover: true, Priority: true, Connections: 2}})
	c := h.Client(p.Addr("nfs"))
	check(t, c, proxytest.GetattrCall(1))
	at := func(addr string) (n int) {
		for _, c := range p.Status(status.Query{Connections: true}).Upstreams[0].Connections {
			if c.State == status.ConnectionUp && c.Endpoint == addr {
				n++
			}
		}
		return n
	}
	h.Eventually("both connections are at the first endpoint", func() bool { return at(a.Addr()) == 2 })
	if err := p.Eject("storage", a.Addr(), 0); err != nil {
		t.Fatal(err)
	}
	h.Eventually("both connections are at the second endpoint", func() bool { return at(b.Addr()) == 2 && at(a.Addr()) == 0 })
	check(t, c, proxytest.GetattrCall(2))
	es := p.Status(status.Query{}).Upstreams[0].Endpoints
	if es[0].State != status.EndpointEjected || es[0].Until != nil || es[0].Reason == "" || es[0].Ejections != 1 || es[1].State != status.EndpointUsed {
		t.Errorf("endpoints %+v", es)
	}
	if err := p.Eject("storage", b.Addr(), time.Hour); err == nil {
		t.Error("the last endpoint could be ejected")
	}
	if err := p.Return("storage", a.Addr()); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the connections are back", func() bool { return at(a.Addr()) == 2 && at(b.Addr()) == 0 })
	for name, err := range map[string]error{
		"an endpoint that is not ejected": p.Return("storage", a.Addr()),
		"an unknown endpoint":             p.Eject("storage", "192.0.2.1:1", 0),
		"an unknown upstream":             p.Eject("nothing", a.Addr(), 0),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := p.Eject("storage", a.Addr(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the ejection is over", func() bool {
		return at(a.Addr()) == 2 && p.Status(status.Query{}).Upstreams[0].Endpoints[0].State == status.EndpointUsed
	})
}

// TestDisconnect: an operator closes clients by address and port, address, and network.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{h.TCPServer(proxytest.Behaviour{}).Addr()}}})
	for range 4 {
		check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
	}
	one := p.Status(status.Query{}).Clients.List[0].Address
	left := 4
	for _, tt := range []struct {
		who    string
		closed int
	}{{"192.0.2.7", 0}, {"10.0.0.0/8", 0}, {one, 1}, {"127.0.0.0/8", 3}, {"127.0.0.1", 0}} {
		n, err := p.Disconnect(tt.who, "test")
		if err != nil || n != tt.closed {
			t.Errorf("%s: %d closed, want %d; %v", tt.who, n, tt.closed, err)
		}
		left -= tt.closed
		h.Eventually("they are closed", func() bool { return p.Status(status.Query{}).Clients.Total == left })
	}
	if _, err := p.Disconnect("nobody", "test"); err == nil {
		t.Error("no error for what is no address")
	}
}
