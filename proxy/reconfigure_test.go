package proxy_test

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// TestReplacedUpstream: what a client sends again after another upstream has taken the
// place of the one that had its Call is known, whether that was answered or not: the
// server sees it under one XID, and once while it is under way.
func TestReplacedUpstream(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	release := make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	tcp := h.TCPServer(proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if bytes.Contains(c.Message, []byte("slow")) {
			<-release
		}
		return nil, false
	}})
	t.Cleanup(open) // before the server waits for it
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "0.0.0.0:0", Upstream: "tcp"}}
	us := []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}}
	p := h.Proxy(ls, us)
	replace := func() {
		t.Helper()
		if us[0].Source.Address.IsValid() {
			us[0].Source.Address = netip.Addr{}
		} else {
			us[0].Source.Address = netip.MustParseAddr("127.0.0.1")
		}
		// Others come and go.
		us = append(us[:1:1], settings.UpstreamOptions{Name: us[0].Source.Address.String(), Endpoints: []string{tcp.Addr()}})
		if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
			t.Fatal(err)
		}
	}
	port := h.KeptPort()
	answered := proxytest.MkdirCall(77, "quick")
	a := port.Client(p.Addr("nfs"))
	check(t, a, answered)
	for range 3 {
		replace()
		check(t, port.Client(p.Addr("nfs")), answered)
	}
	if n := len(tcp.XIDs()); n != 1 {
		t.Errorf("sent again after it was answered: the server saw %d XIDs", n)
	}

	before := tcp.Calls.Load()
	slow := proxytest.MkdirCall(78, "slow")
	if _, err := a.Go(slow); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the Call is at the server", func() bool { return tcp.Calls.Load() == before+1 })
	replace()
	a.Close()
	again, err := port.Client(p.Addr("nfs")).Go(slow)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the one under way is adopted", func() bool { return metric(h, `listener_calls_total{listener="nfs",result="absorbed"}`) == 1 })
	open()
	if r, ok := <-again; !ok || !bytes.Equal(r, proxytest.Expected(slow)) {
		t.Error("the Call that was adopted has no Reply")
	}
	if n := tcp.Calls.Load(); n != before+1 {
		t.Errorf("sent again while it was under way: the server had it %d times", n-before)
	}
}

// TestReconfigureMode: a client that is connected gets a pinned connection once the mode
// allows it, keeps it, and clients without one get none while the mode forbids it.
func TestReconfigureMode(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	tcp := h.TCPServer(proxytest.Behaviour{})
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}}
	us := []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}, Mode: settings.ModeShared}}
	p := h.Proxy(ls, us)
	var clients []*proxytest.Client
	for range 4 {
		clients = append(clients, h.Client(p.Addr("nfs")))
	}
	xid := uint32(0)
	step := func(mode settings.Mode, pinned, want int, sends ...int) {
		t.Helper()
		us[0].Mode, us[0].Pinned = mode, pinned
		if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
			t.Fatal(err)
		}
		// A loop may look at its clients' sockets before it is told.
		h.Eventually(fmt.Sprintf("with mode %v and at most %d there are %d pinned connections", mode, pinned, want), func() bool {
			for _, i := range sends {
				xid++
				check(t, clients[i], proxytest.SequenceCall(xid))
			}
			return p.Status(status.Query{}).Upstreams[0].Pinned == want
		})
	}
	step(settings.ModeShared, 0, 0, 0, 1)
	step(settings.ModePinned, 1, 1, 0) // it was on a shared one
	null := func(c *proxytest.Client) {
		t.Helper()
		xid++
		if _, err := c.Call(proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 0)); err != nil {
			t.Fatal(err)
		}
	}
	null(clients[3]) // whose loop has been told by now
	xid++
	if _, err := clients[3].Call(proxytest.SequenceCall(xid)); err == nil {
		t.Error("there are more pinned connections than there may be")
	}
	step(settings.ModePinned, 8, 2, 0, 1)
	null(clients[2])
	step(settings.ModeShared, 8, 2, 0, 1, 2)
	step(settings.ModePinned, 8, 3, 0, 1, 2)
}

// TestRefusedReloadMetrics: a reload that is refused does not change the metrics.
func TestRefusedReloadMetrics(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}
	us := []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Mode: settings.ModePinned}}
	p := h.Proxy(ls, us)
	h.Eventually("the connection is primed", func() bool { return metric(h, "upstream_credits_granted") >= 128 })
	check(t, h.Client(p.Addr("nfs")), proxytest.SequenceCall(1))
	if n := metric(h, "upstream_pinned_connections"); n != 1 {
		t.Fatal(n)
	}
	us[0].Source.Address = netip.MustParseAddr("127.0.0.1")
	busy := append(ls[:1:1], settings.ListenerOptions{Name: "other", Address: s.Addr(), Upstream: "storage"})
	if err := p.Reconfigure(busy, us); err == nil {
		t.Fatal("not refused")
	}
	if n := metric(h, "upstream_credits_granted"); n < 128 {
		t.Errorf("upstream_credits_granted is %d after a reload that was refused", n)
	}
	if n := metric(h, "upstream_pinned_connections"); n != 1 {
		t.Errorf("upstream_pinned_connections is %d after a reload that was refused, want 1", n)
	}
}

// TestSeriesEnd: the series of an upstream end with it, those of a listener of the same name do not, and
// an upstream that comes back has series again.
func TestSeriesEnd(t *testing.T) {
	t.Parallel()
	for _, rdma := range []bool{false, true} {
		h := proxytest.NewHarness(t, budget)
		s := h.TCPServer(proxytest.Behaviour{})
		kept := settings.UpstreamOptions{Name: "kept", Endpoints: []string{s.Addr()}}
		goes := settings.UpstreamOptions{Name: "nfs", Endpoints: []string{s.Addr()}}
		if rdma {
			provider := fabrictest.NewLoopback()
			l := fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			h.RDMAServer(provider, []loop.Loop{l}, "storage", 8, proxytest.Behaviour{})
			goes = settings.UpstreamOptions{Name: "nfs", RDMA: true, Provider: provider, Endpoints: []string{"storage"}}
		}
		ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "nfs"}}
		us := []settings.UpstreamOptions{goes, kept}
		p := h.Proxy(ls, us)
		lines := func(label string) (n int) {
			w := httptest.NewRecorder()
			h.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			for line := range strings.Lines(w.Body.String()) {
				if strings.Contains(line, label) && (label == `upstream="nfs"` || !strings.Contains(line, "upstream=")) {
					n++
				}
			}
			return n
		}
		for round := range uint32(2) {
			check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(round+1))
			if n := metric(h, `upstream_calls_total{outcome="replied",upstream="nfs"}`); n != 1 {
				t.Errorf("round %d: %d Calls of the upstream counted, want 1", round, n)
			}
			before := lines(`listener="nfs"`)
			ls[0].Upstream = "kept"
			if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(kept)); err != nil {
				t.Fatal(err)
			}
			h.Eventually("the series of the upstream have ended", func() bool { return lines(`upstream="nfs"`) == 0 })
			if n := lines(`listener="nfs"`); n != before || metric(h, `upstream_connections{upstream="kept"}`) == 0 {
				t.Errorf("%d lines of the listener, want %d", n, before)
			}
			if n := metric(h, `listener_tcp_connections{listener="nfs"}`); n != int(round)+1 {
				t.Errorf("%d connections of the listener, want %d", n, round+1)
			}
			ls[0].Upstream = "nfs"
			if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestStatusWhileListenersCome: whoever asks for the status while a reload adds a listener and an upstream sees
// them whole, or not yet.
func TestStatusWhileListenersCome(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s"}}
	us := []settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}}
	p := h.Proxy(ls, us)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					p.Status(status.Query{})
				}
			}
		})
	}
	for i := range 60 {
		name := fmt.Sprint("more-", i)
		more := append(us[:1:1], settings.UpstreamOptions{Name: name, Endpoints: []string{s.Addr()}})
		all := append(ls[:1:1], settings.ListenerOptions{Name: name, Address: "127.0.0.1:0", Upstream: name})
		if err := p.Reconfigure(proxytest.Listeners(all...), proxytest.Upstreams(more...)); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
}
