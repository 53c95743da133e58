package proxy_test

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// TestRDMAClientsOnLoops: RDMA clients are spread evenly over the event loops, although between two that stay one comes
// and goes, such as a probe.
func TestRDMAClientsOnLoops(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "s", RDMA: true, Provider: proxytest.IWARP(iwarp.Options{})}},
		[]settings.UpstreamOptions{{Name: "s", Endpoints: []string{s.Addr()}}})
	dial := func() *proxytest.RDMAClient {
		c, err := h.DialRDMA(proxytest.IWARP(iwarp.Options{}), h.Engine.Loops()[0], p.Addr("nfs"), rdmaside.RequesterOptions{})
		if err != nil {
			t.Error(err)
			return nil
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Call(proxytest.GetattrCall(1)); err != nil {
			t.Error(err)
		}
		return c
	}
	loops := len(h.Engine.Loops())
	for i := range 4 * loops {
		dial()
		probe := dial()
		if t.Failed() {
			return
		}
		_ = probe.Close()
		h.Eventually("the probe has gone", func() bool {
			n := 0
			for _, m := range p.RDMAClientsByLoop() {
				n += m
			}
			return n == i+1
		})
	}
	for i, n := range p.RDMAClientsByLoop() {
		if n != 4 {
			t.Errorf("loop %d has %d of %d clients", i, n, 4*loops)
		}
	}
}
