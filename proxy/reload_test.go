package proxy_test

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// series returns the names and labels of all series.
func series(h *proxytest.Harness) (all []string) {
	w := httptest.NewRecorder()
	h.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if name, _, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
			all = append(all, name)
		}
	}
	return all
}

// A generation is a configuration all of whose names end in its number.
type generation struct {
	ls []settings.ListenerOptions
	us []settings.UpstreamOptions
	ts []admit.TenantOptions
}

// TestReloadsLeaveNothing: after reloads that give everything another name there are as many series as before, and
// nothing refers to the listeners, upstreams and tenants that are gone.
func TestReloadsLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, rdma := range []bool{false, true} {
		t.Run(map[bool]string{false: "TCP", true: "RDMA"}[rdma], func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			s := h.TCPServer(proxytest.Behaviour{})
			back := fabrictest.NewLoopback()
			l := fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			h.RDMAServer(back, []loop.Loop{l}, "storage", 8, proxytest.Behaviour{})
			clients := iwarptest.NewLoop()
			t.Cleanup(clients.Stop)
			generate := func(n int) (g generation) {
				name := func(what string) string { return fmt.Sprint(what, "-", n) }
				local := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				rule := rules.Rule{Name: name("rule"), Clients: local, Action: rules.Allow}
				lo := settings.ListenerOptions{Name: name("listener"), Address: "127.0.0.1:0", Upstream: name("upstream"), Rules: []rules.Rule{rule}}
				uo := settings.UpstreamOptions{Name: name("upstream"), Endpoints: []string{s.Addr()}}
				if rdma {
					lo.RDMA, lo.Provider = true, proxytest.IWARP(iwarp.Options{})
					uo = settings.UpstreamOptions{Name: name("upstream"), RDMA: true, Provider: back, Endpoints: []string{"storage"}}
				}
				return generation{
					[]settings.ListenerOptions{lo},
					[]settings.UpstreamOptions{uo},
					[]admit.TenantOptions{{Name: name("tenant"), Clients: local}},
				}
			}
			call := func(p *proxy.Proxy, g *generation) {
				t.Helper()
				m := proxytest.GetattrCall(1)
				addr := p.Addr(g.ls[0].Name)
				if !rdma {
					check(t, h.Client(addr), m)
					return
				}
				c, err := h.DialRDMA(g.ls[0].Provider, clients, addr, rdmaside.RequesterOptions{IdleReceives: 4, CallInline: 1024, ReplyInline: 1024})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Call(m); err != nil {
					t.Fatal(err)
				}
				// The client stays, and the bridge closes it.
				t.Cleanup(func() { _ = c.Close() })
			}
			g := generate(0)
			p := h.Proxy(proxytest.Listeners(g.ls...), proxytest.Upstreams(g.us...))
			if err := p.SetTenants(g.ts); err != nil {
				t.Fatal(err)
			}
			call(p, &g)
			at := func(n int, all []string) []string {
				var same []string
				for _, s := range all {
					same = append(same, strings.ReplaceAll(s, fmt.Sprint("-", n, `"`), `-N"`))
				}
				slices.Sort(same)
				return same
			}
			first := at(0, series(h))
			gone := map[string]func() bool{}
			const reloads = 10
			for n := range reloads {
				for what, freed := range p.Freed(g.ls[0].Name, g.us[0].Name, g.ts[0].Name) {
					gone[what] = freed
				}
				g = generate(n + 1)
				if err := p.Reconfigure(proxytest.Listeners(g.ls...), proxytest.Upstreams(g.us...)); err != nil {
					t.Fatal(err)
				}
				if err := p.SetTenants(g.ts); err != nil {
					t.Fatal(err)
				}
				call(p, &g)
			}
			h.Eventually("there are as many series as at first", func() bool {
				return len(series(h)) == len(first) || t.Failed()
			})
			if now := at(reloads, series(h)); !slices.Equal(now, first) {
				t.Errorf("the series are\n%s\nwant\n%s", strings.Join(now, "\n"), strings.Join(first, "\n"))
			}
			if len(gone) != 3*reloads {
				t.Fatalf("%d things are watched, want %d", len(gone), 3*reloads)
			}
			for what, freed := range gone {
				h.Eventually(what+" is freed", freed)
			}
		})
	}
}

// TestSeriesOfListenersEnd: the series of a listener stay while it has clients, and those of a name stay while there is
// a listener of that name.
func TestSeriesOfListenersEnd(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	release := make(chan struct{})
	s := h.TCPServer(proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Procedure == 9 { // MKDIR
			<-release
		}
		return nil, false
	}})
	us := []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Connections: 4}}
	ls := []settings.ListenerOptions{
		{Name: "goes", Address: "127.0.0.1:0", Upstream: "storage"}, {Name: "moves", Address: "127.0.0.1:0", Upstream: "storage"},
	}
	p := h.Proxy(ls, us)
	of := func(listener string) (n int) {
		for _, s := range series(h) {
			if strings.Contains(s, `listener="`+listener+`"`) {
				n++
			}
		}
		return n
	}
	check(t, h.Client(p.Addr("moves")), proxytest.GetattrCall(1))
	slow := proxytest.MkdirCall(2, "slow")
	r, err := h.Client(p.Addr("goes")).Go(slow)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the Call is under way", func() bool { return metric(h, `listener_received_calls_total{listener="goes"}`) == 1 })
	n, before := of("goes"), metric(h, `listener_received_calls_total{listener="moves"}`)
	ls = []settings.ListenerOptions{{Name: "moves", Address: "127.0.0.2:0", Upstream: "storage"}}
	if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
		t.Fatal(err)
	}
	check(t, h.Client(p.Addr("moves")), proxytest.GetattrCall(1))
	h.Eventually("a listener that has moved counts on", func() bool { return metric(h, `listener_received_calls_total{listener="moves"}`) == before+1 })
	if got := of("goes"); got != n {
		t.Errorf("%d series of a listener with a client, want %d", got, n)
	}
	close(release)
	<-r
	h.Eventually("the series have ended with the last client", func() bool { return of("goes") == 0 })
	if of("moves") == 0 {
		t.Error("the series of a listener that is there have ended")
	}
	if d := p.Status(status.Query{}); len(d.Listeners) != 1 {
		t.Errorf("%d listeners", len(d.Listeners))
	}
}

// TestRefusedReloadSeries: a reload that is refused leaves no series of what it would have added, and those of the
// listeners that are there go on.
func TestRefusedReloadSeries(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	us := []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}}}
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}
	p := h.Proxy(ls, us)
	check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
	first := series(h)
	bad := []settings.ListenerOptions{
		{Name: "nfs", Address: "127.0.0.2:0", Upstream: "more"},
		{Name: "new", Address: s.Addr(), Upstream: "more"}, // the server has that address
	}
	if err := p.Reconfigure(proxytest.Listeners(bad...), proxytest.Upstreams(us[0], settings.UpstreamOptions{Name: "more", Endpoints: []string{s.Addr()}})); err == nil {
		t.Fatal("the reload was not refused")
	}
	if now := series(h); !slices.Equal(now, first) {
		t.Errorf("after a reload that was refused the series are\n%s\nwant\n%s", strings.Join(now, "\n"), strings.Join(first, "\n"))
	}
	if n := metric(h, `listener_clients{listener="nfs"}`); n != 1 {
		t.Errorf("%d clients are counted, want 1", n)
	}
}

// TestTLSSeriesAfterReloads: no series shows a certificate that is not in use any more, whether its listener has another
// name or address now, or its upstream no TLS.
func TestTLSSeriesAfterReloads(t *testing.T) {
	t.Parallel()
	h, x := proxytest.NewHarness(t, budget), newSecurity(t)
	s := h.TCPServer(proxytest.Behaviour{})
	ls := []settings.ListenerOptions{
		{Name: "renamed", Address: "127.0.0.1:0", Upstream: "storage", TLS: x.listener(true)},
		{Name: "moved", Address: "127.0.0.1:0", Upstream: "storage", TLS: x.listener(true)},
	}
	us := []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, TLS: x.upstream(false)}}
	p := h.Proxy(ls, us)
	expiry := func(of string) int { return metric(h, of) }
	for _, of := range []string{
		`listener_tls_expiry_timestamp_seconds{file="certificate",listener="renamed"}`, `listener_tls_expiry_timestamp_seconds{file="certificate",listener="moved"}`,
		`upstream_tls_expiry_timestamp_seconds{file="certificate",upstream="storage"}`,
	} {
		if expiry(of) == 0 {
			t.Errorf("no %s", of)
		}
	}
	freed := p.Freed("moved", "storage", "")
	us[0].TLS = nil
	ls = []settings.ListenerOptions{
		{Name: "new", Address: "127.0.0.1:0", Upstream: "storage", TLS: x.listener(true)}, {Name: "moved", Address: "127.0.0.2:0", Upstream: "storage"},
	}
	if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the series of the old name have ended", func() bool {
		return !slices.ContainsFunc(series(h), func(s string) bool { return strings.Contains(s, "renamed") })
	})
	for _, of := range []string{`listener_tls_expiry_timestamp_seconds{file="certificate",listener="moved"}`, "upstream_tls_expiry_timestamp_seconds"} {
		if n := expiry(of); n != 0 {
			t.Errorf("%s is %d, want 0", of, n)
		}
	}
	if expiry(`listener_tls_expiry_timestamp_seconds{file="certificate",listener="new"}`) == 0 {
		t.Error("the listener has no certificate")
	}
	for what, freed := range freed {
		h.Eventually(what+" is freed", freed)
	}
}

// TestRemovedUpstreamsFreed: clients that stay connected and idle do not keep what they had at upstreams that are gone.
func TestRemovedUpstreamsFreed(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "upstream-0"}}
	us := []settings.UpstreamOptions{{Name: "upstream-0", Endpoints: []string{s.Addr()}}}
	p := h.Proxy(ls, us)
	var clients []*proxytest.Client
	for range 4 {
		clients = append(clients, h.Client(p.Addr("nfs")))
	}
	gone := map[string]func() bool{}
	for n := range 5 {
		for i, c := range clients {
			if n == 0 || i == 0 { // the others have nothing to do later
				check(t, c, proxytest.GetattrCall(uint32(10*n+i+1)))
			}
		}
		maps.Copy(gone, p.Freed("", us[0].Name, ""))
		us[0].Name = fmt.Sprint("upstream-", n+1)
		ls[0].Upstream = us[0].Name
		if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
			t.Fatal(err)
		}
	}
	for what, freed := range gone {
		h.Eventually(what+" is freed", freed)
	}
}
