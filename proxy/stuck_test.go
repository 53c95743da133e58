package proxy_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// hangs is the behaviour of a server one of whose file systems does not answer: READ never comes
// back, nor does a COMPOUND of hungSession.
func hangs(c *oncrpc.Call) ([]byte, bool) {
	if c.Program == oncrpc.ProgramNFS && c.Version == 3 && c.Procedure == 6 {
		return nil, true
	}
	return hangsOn(c)
}

// answeredSlots has a client of its own address for each i from 1 to n send Calls, one after the
// other, and returns in which part of the half-seconds a client was answered, on average.
func answeredSlots(t *testing.T, addr string, n int, message func(xid uint32) []byte) float64 {
	const slots = 5
	var answered atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 7, byte(1+i)), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wg.Go(func() {
			last := -1
			for xid := uint32(i+1) << 20; ; xid++ {
				if _, err := c.Call(message(xid)); err != nil {
					t.Error(err)
					return
				}
				slot := int(time.Since(began) / (500 * time.Millisecond))
				if slot >= slots {
					return
				}
				if slot > last {
					last = slot
					answered.Add(1)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	return float64(answered.Load()) / float64(slots*n)
}

// TestCallsThatHang: Calls to a file system that does not answer do not keep the clients of others
// waiting, whether they are of one client or of many, whether the upstream has just started, and
// whether the Calls may take any connection or are all of one lane.
func TestCallsThatHang(t *testing.T) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, tt := range []struct {
		clients, calls int
		slowStart      int
	}{{1, 256, 1 << 10}, {100, 4, 1 << 10}, {1, 16, 16}, {16, 1, 16}} {
		for _, rdma := range []bool{false, true} {
			for _, minor1 := range []bool{false, true} {
				atOnce(t, &all, fmt.Sprintf("%d clients of %d Calls, slow start %d, rdma %v, NFSv4.1 %v", tt.clients, tt.calls, tt.slowStart, rdma, minor1), func(t *testing.T) {
					h := proxytest.NewHarness(t, budget)
					uo := proxy.UpstreamOptions{Name: "storage", RDMA: rdma, Connections: 4, Credits: 32, SlowStart: tt.slowStart}
					hosts := tt.clients
					hung, message := func(xid uint32) []byte { return proxytest.ReadCall(xid, 0, 100) }, proxytest.GetattrCall
					if minor1 {
						uo.Connections, hung, message = 1, hungCall, proxytest.SequenceCall
						hosts = min(hosts, 25) // the lane has a quarter of the credits
					}
					if rdma {
						uo.Provider = fabrictest.NewLoopback()
						l := fabrictest.NewLoop()
						t.Cleanup(l.Stop)
						h.RDMAServer(uo.Provider.(*fabrictest.Loopback), []loop.Loop{l}, "storage", 32, proxytest.Behaviour{Intercept: hangs})
						uo.Endpoints = []string{"storage"}
					} else {
						uo.Endpoints = []string{h.TCPServer(proxytest.Behaviour{Intercept: hangs}).Addr()}
					}
					p := h.Proxy([]proxy.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []proxy.UpstreamOptions{uo})
					for i := range hosts {
						c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, byte(1+i)), p.Addr("nfs"))
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { c.Close() })
						for j := range tt.calls {
							if _, err := c.Go(hung(uint32(i<<10 + j + 1))); err != nil {
								t.Fatal(err)
							}
						}
					}
					h.Eventually("the Calls have come", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Used > 0 })
					// Calls are old after half a second in a slow start.
					check(t, h.Client(p.Addr("nfs")), message(1))
					got := 0.0
					for range windows { // the machine may not let the clients send for half a second
						if got = max(got, answeredSlots(t, p.Addr("nfs"), 8, message)); got >= 0.99 {
							return
						}
					}
					t.Errorf("clients are answered in %.0f %% of the half-seconds", 100*got)
				})
			}
		}
	}
}
