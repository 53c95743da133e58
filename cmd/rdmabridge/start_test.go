package main

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// newStartCrowd starts a bridge whose RDMA listener has the limits of TestStartLimits.
func newStartCrowd(t *testing.T) *throng {
	t.Helper()
	c, err := configs.Load([]byte(`
listeners:
  - name: rdma
    address: 127.0.0.1:0
    transport: rdma
    upstream: s
    limits: {starting: 3, starting_per_address: 2}
    timeouts: {start: 5s}
upstreams:
  - {name: s, transport: tcp, endpoints: ['127.0.0.1:1']}
`), known)
	if err != nil {
		t.Fatal(err)
	}
	x := &throng{Harness: proxytest.NewHarness(t, 64<<20)}
	lo, err := translate.Listener(&c.Listeners[0], nil, x.Log)
	if err != nil {
		t.Fatal(err)
	}
	x.server = x.TCPServer(proxytest.Behaviour{})
	x.p = x.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{{Name: "s", Endpoints: []string{x.server.Addr()}}})
	return x
}

// TestStartLimits: limits.starting_per_address bounds the peers that connect to an RDMA
// listener and send nothing, so that the oldest of them is closed for the third, and
// timeouts.start how long they stay. Another client can connect.
func TestStartLimits(t *testing.T) {
	t.Parallel()
	x := newStartCrowd(t)
	silent := func() net.Conn {
		nc, err := net.Dial("tcp", x.p.Addr("rdma"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	// ends waits until the bridge has closed nc.
	ends := func(nc net.Conn) {
		if n, err := nc.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("a peer that said nothing read %d octets", n)
		}
	}
	refused := func(reason string) int {
		return x.value(`listener_refused_connections_total{listener="rdma",reason="` + reason + `"}`)
	}
	began := time.Now()
	first, second, third := silent(), silent(), silent()
	ends(first)
	x.Eventually("the first is counted", func() bool { return refused("starting_per_address") == 1 })
	if n := refused("timeout"); n != 0 {
		t.Errorf("%d peers timed out at once, want none", n)
	}
	ends(second)
	ends(third)
	if d := time.Since(began); d < 5*time.Second {
		t.Errorf("silent peers were closed after %v, want 5 s", d)
	}
	x.Eventually("all are counted", func() bool { return refused("timeout") == 2 })
	if n := refused("starting_per_address"); n != 1 {
		t.Errorf("%d peers were refused, want one", n)
	}
	l := iwarptest.NewLoop()
	t.Cleanup(l.Stop)
	client := x.RDMAClient(proxytest.IWARP(iwarp.Options{Log: x.Log}), l, x.p.Addr("rdma"), 0)
	m := proxytest.GetattrCall(1)
	if got, err := client.Call(m); err != nil || !bytes.Equal(got, proxytest.Expected(m)) {
		t.Errorf("another client: %v", err)
	}
}
