package proxy_test

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// TestConnectionsOnDemand: an upstream has one connection until Calls need more, and again when no
// Call has used the others for a while. The bridge counts as ready all the time, no connection that it
// closes counts as lost, and a TCP connection that is made again comes from the port it had before.
func TestConnectionsOnDemand(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, rdma := range []bool{false, true} {
		name := "tcp"
		if rdma {
			name = "iwarp"
		}
		atOnce(t, &all, name, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			b := proxytest.Behaviour{}
			uo := settings.UpstreamOptions{Name: "storage", RDMA: rdma, Connections: 3, Idle: time.Second, SlowStart: 1 << 10}
			var connections func() int
			var tcp *proxytest.TCPServer
			if rdma {
				l := iwarptest.NewLoop()
				t.Cleanup(l.Stop)
				s := h.RDMAServer(proxytest.IWARP(iwarp.Options{}), []loop.Loop{l}, "127.0.0.1:0", 32, b)
				uo.Endpoints, uo.Provider, connections = []string{s.Addr()}, proxytest.IWARP(iwarp.Options{}), s.Connections
			} else {
				tcp = h.TCPServer(b)
				low := free(t, 3)
				uo.Endpoints, uo.Source = []string{tcp.Addr()}, reach.Source{Low: low, High: low + 2}
				connections = func() int { return len(tcp.Conns()) }
			}
			lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}
			p := h.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{uo})
			x := &portCase{Harness: h, p: p, s: tcp}
			ports := func() []uint16 {
				if rdma {
					return nil
				}
				return x.ports(3)
			}
			c := h.Client(p.Addr("nfs"))
			h.Eventually("one connection at the start", func() bool { return connections() == 1 }) // the server may count it late
			check(t, c, proxytest.GetattrCall(1))
			st := func() status.Upstream { return p.Status(status.Query{}).Upstreams[0] }
			xid := uint32(1000)
			burst := func() { // until all connections are up
				t.Helper()
				h.Eventually("all connections are up", func() bool {
					var replies sync.WaitGroup
					for range 60 {
						xid++
						m := proxytest.GetattrCall(xid)
						ch, err := c.Go(m)
						if err != nil {
							t.Fatal(err)
						}
						replies.Go(func() {
							if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
								t.Error("wrong reply or none")
							}
						})
					}
					replies.Wait()
					return st().Usable == 3
				})
			}
			burst()
			before := ports()
			h.Eventually("one connection is left", func() bool { return connections() == 1 && st().Asleep == 2 })
			if s := st(); s.Usable != 1 || s.DownSince != nil || p.Ready() != nil {
				t.Errorf("%d usable, down since %v, ready: %v", s.Usable, s.DownSince, p.Ready())
			}
			burst()
			if after := ports(); !slices.Equal(after, before) || metric(h, "upstream_source_port_changes_total") != 0 {
				t.Errorf("connections from %d, and before from %d", after, before)
			}
			for _, reason := range []string{"silent", "deadline", "dropped", "idle", "other"} {
				if n := metric(h, `upstream_disconnects_total{reason="`+reason+`",upstream="storage"}`); n != 0 {
					t.Errorf("%d connections ended: %s", n, reason)
				}
			}
			h.Eventually("one connection is left again", func() bool { return connections() == 1 })
			uo.Idle = 0
			if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(uo)); err != nil {
				t.Fatal(err)
			}
			h.Eventually("all connections are made", func() bool { return connections() == 3 && st().Usable == 3 })
			uo.Idle = time.Second
			if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(uo)); err != nil {
				t.Fatal(err)
			}
			h.Eventually("they are closed", func() bool { return connections() == 1 })
			check(t, c, proxytest.GetattrCall(3000))
		})
	}
}
