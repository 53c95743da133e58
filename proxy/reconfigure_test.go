package proxy_test

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
)

// TestReplacedUpstream: what a client sends again after another upstream has taken the
// place of the one that had its Call is known, whether that was answered or not: the
// server sees it under one XID, and once while it is under way.
func TestReplacedUpstream(t *testing.T) {
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
	ls := []proxy.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}}
	us := []proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{tcp.Addr()}}}
	p := h.Proxy(ls, us)
	replace := func() {
		t.Helper()
		if us[0].Source.Address.IsValid() {
			us[0].Source.Address = netip.Addr{}
		} else {
			us[0].Source.Address = netip.MustParseAddr("127.0.0.1")
		}
		// Others come and go.
		us = append(us[:1:1], proxy.UpstreamOptions{Name: us[0].Source.Address.String(), Endpoints: []string{tcp.Addr()}})
		if err := p.Reconfigure(ls, us); err != nil {
			t.Fatal(err)
		}
	}
	answered := proxytest.MkdirCall(77, "quick")
	a := h.Client(p.Addr("nfs"))
	check(t, a, answered)
	for range 3 {
		replace()
		check(t, h.Client(p.Addr("nfs")), answered)
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
	again, err := h.Client(p.Addr("nfs")).Go(slow)
	if err != nil {
		t.Fatal(err)
	}
	h.Eventually("the one under way is adopted", func() bool { return metric(h, `client_calls_total{listener="nfs",result="absorbed"}`) == 1 })
	open()
	if r, ok := <-again; !ok || !bytes.Equal(r, proxytest.Expected(slow)) {
		t.Error("the Call that was adopted has no Reply")
	}
	if n := tcp.Calls.Load(); n != before+1 {
		t.Errorf("sent again while it was under way: the server had it %d times", n-before)
	}
}
