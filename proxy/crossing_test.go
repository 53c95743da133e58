package proxy_test

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// writes returns how often this process has called write or writev.
func writes(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skipf("the kernel does not count system calls: %v", err)
	}
	_, rest, _ := strings.Cut(string(b), "syscw: ")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("%v: %q", err, b)
	}
	return n
}

// TestCrossing counts the writes of one Call after the other: one of the client, two of the bridge, one of the server.
// A Call that goes to another loop and back needs two more, to wake the loops. No other test may run meanwhile.
func TestCrossing(t *testing.T) {
	t.Run("TCP", func(t *testing.T) {
		h := proxytest.NewHarness(t, budget)
		s := h.TCPServer(proxytest.Behaviour{})
		countWrites(t, h, settings.UpstreamOptions{Endpoints: []string{s.Addr()}})
	})
	t.Run("RDMA", func(t *testing.T) {
		h := proxytest.NewHarness(t, budget)
		far := proxytest.NewHarness(t, budget)
		p := proxytest.IWARP(iwarp.Options{})
		s := far.RDMAServer(p, []loop.Loop{far.Engine.Loops()[0]}, "127.0.0.1:0", 32, proxytest.Behaviour{})
		countWrites(t, h, settings.UpstreamOptions{RDMA: true, Provider: p, Endpoints: []string{s.Addr()}})
	})
}

func countWrites(t *testing.T, h *proxytest.Harness, far settings.UpstreamOptions) {
	far.Name, far.Connections = "far", 2
	p := h.Proxy([]settings.ListenerOptions{{Name: "near", Address: "127.0.0.1:0", Upstream: "far"}}, []settings.UpstreamOptions{far})
	h.Eventually("both connections are there", func() bool { return p.Status(status.Query{}).Upstreams[0].Usable == 2 })
	for what, call := range map[string]func(uint32) []byte{
		"reads":                proxytest.GetattrCall,
		"must not be repeated": func(xid uint32) []byte { return proxytest.MkdirCall(xid, fmt.Sprint("d", xid)) },
		"unknown program":      func(xid uint32) []byte { return proxytest.EchoCall(xid, 16, 16, 0) },
	} {
		for _, from := range []net.IP{{127, 0, 0, 1}, {127, 0, 0, 10}} { // they have different seats
			c, err := proxytest.DialClientFrom(from, p.Addr("near"))
			if err != nil {
				t.Fatal(err)
			}
			const calls = 300
			var before int
			for i := range uint32(calls + 20) {
				if i == 20 {
					before = writes(t)
				}
				check(t, c, call(i+1))
			}
			if n := float64(writes(t)-before) / calls; n > 4.5 {
				t.Errorf("%s, client %v: %.2f writes for each Call, want 4", what, from, n)
			}
			c.Close()
		}
	}
}
