package proxy_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// privilegedClient connects to addr from a port below 1024.
func privilegedClient(t *testing.T, addr string) net.Conn {
	t.Helper()
	for port := 1023; port > 600; port-- {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}}
		c, err := d.Dial("tcp", addr)
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	t.Fatal("no port below 1024 is free")
	return nil
}

// TestPrivileged: a listener that requires privileged ports refuses all others, over TCP and
// RDMA, and counts them.
func TestPrivileged(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	server := h.TCPServer(proxytest.Behaviour{})
	provider := proxytest.IWARP(iwarp.Options{})
	on := iwarptest.NewLoop()
	t.Cleanup(on.Stop)
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", Privileged: true},
		{Name: "rdma", Address: "127.0.0.1:0", RDMA: true, Provider: provider, Upstream: "tcp", Privileged: true},
	}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{server.Addr()}}})

	if c, err := proxytest.DialClient(p.Addr("nfs")); err == nil { // the listener resets it, perhaps before
		if _, err := c.Call(proxytest.GetattrCall(1)); err == nil {
			t.Error("a client of any user is answered over TCP")
		}
		_ = c.Close()
	}
	if _, err := h.DialRDMA(provider, on, p.Addr("rdma"), rdmaside.RequesterOptions{IdleReceives: 4}); err == nil {
		t.Error("a client of any user is let in over RDMA")
	}
	for _, series := range []string{`listener_refused_connections_total{listener="nfs",reason="port"}`, `listener_refused_connections_total{listener="rdma",reason="port"}`} {
		h.Eventually(series, func() bool { return metric(h, series) == 1 })
	}
	if os.Geteuid() == 0 {
		root, m := privilegedClient(t, p.Addr("nfs")), proxytest.GetattrCall(2)
		if err := testkit.WriteRecord(root, m); err != nil {
			t.Fatal(err)
		}
		if r, err := testkit.ReadRecord(root); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Errorf("a client with a privileged port: Reply %x, %v", r, err)
		}
	}
	if n := server.Calls.Load(); n > 1 {
		t.Errorf("%d Calls reached the server", n)
	}
}
