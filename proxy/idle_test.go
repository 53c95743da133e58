package proxy_test

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// TestIdleRDMAClients: however many connect and do nothing, a client that works
// has memory for its Calls; and one address has no more than it may.
func TestIdleRDMAClients(t *testing.T) {
	t.Parallel()
	const budget, many = 32 << 20, 600
	for _, perAddress := range []int{0, 5} {
		h := proxytest.NewHarness(t, budget)
		s := h.TCPServer(proxytest.Behaviour{})
		rp := fabrictest.NewLoopback()
		p := h.Proxy([]settings.ListenerOptions{
			{Name: "rdma", Address: "front", RDMA: true, Provider: rp, Upstream: "tcp", MaxConnectionsPerAddress: perAddress},
			{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"},
		}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
		loop := fabrictest.NewLoop()
		t.Cleanup(loop.Stop)
		clients := proxytest.NewHarness(t, 256<<20) // whose arena is theirs
		acct := clients.Arena.Account("idle", 256<<20)
		refused := 0
		var idle []*rdmaside.Requester
		for range many {
			r, err := rdmaside.DialRequester(t.Context(), rp, loop, "front", proxytest.RequesterOptions(rdmaside.RequesterOptions{Memory: acct, Registry: h.Registry, Credits: 4, Log: zerolog.Nop()}), nil)
			if err != nil {
				refused++
				continue
			}
			idle = append(idle, r)
		}
		if refused == 0 {
			t.Errorf("all %d clients were let in, which would take 8 MiB of 6", many)
		}
		if perAddress == 0 && len(idle) < 300 {
			t.Errorf("only %d idle clients were let in: they have too much each", len(idle))
		}
		if perAddress > 0 && len(idle) != perAddress {
			t.Errorf("%d clients of one address were let in, want %d", len(idle), perAddress)
		}
		c := h.Client(p.Addr("nfs"))
		for i := range uint32(4) {
			check(t, c, proxytest.WriteCall(i+1, 0, 1<<20))
		}
		loop.Do(func() {
			for _, r := range idle {
				r.Close(nil)
			}
		})
		h.Eventually("all have left", func() bool {
			return p.Status(status.Query{}).Listeners[0].Clients == 0 && clients.Arena.Outstanding() == 0
		})
	}
}

// TestIdleWithACall: a client with a Call under way is not idle.
func TestIdleWithACall(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{Delay: 3 * time.Second})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage", IdleTimeout: time.Second}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}}})
	check(t, h.Client(p.Addr("nfs")), proxytest.GetattrCall(1))
}
