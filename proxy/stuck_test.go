package proxy_test

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
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

// answerAll has 8 clients, each of an address of its own, send 50 Calls one after the other.
func answerAll(t *testing.T, addr string, message func(xid uint32) []byte) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 8 {
		c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 7, byte(1+i)), addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		wg.Go(func() {
			for n := range uint32(50) {
				if _, err := c.Call(message(uint32(i+1)<<20 + n)); err != nil {
					t.Errorf("Call %d of client %d: %v", n, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestCallsThatHang: Calls to a file system that does not answer do not keep the clients of others
// waiting, whether they are of one client or of many, whether the upstream has just started, and
// whether the Calls may take any connection or are all of one lane. A client that waits for one of them is not
// answered in the time of proxytest.CallTimeout: the deadline of those that hang is later. TestStuckCalls in package pool
// looks at how soon others are answered.
//
// The hosts of Calls that hang are fewer than seven eighths of the credits: more, each with its first Call, would leave
// none for others that are new.
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
					uo := settings.UpstreamOptions{Name: "storage", RDMA: rdma, Connections: 4, Credits: 32, SlowStart: tt.slowStart, CallTimeout: 5 * proxytest.CallTimeout}
					hosts := tt.clients
					hung, message := func(xid uint32) []byte { return proxytest.ReadCall(xid, 0, 100) }, proxytest.GetattrCall
					if minor1 {
						uo.Connections, hung, message = 1, hungCall, proxytest.SequenceCall
						hosts = min(hosts, 22) // the lane has a quarter of the credits
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
					p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{uo})
					var hanging []<-chan []byte
					for i := range hosts {
						c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, byte(1+i)), p.Addr("nfs"))
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { c.Close() })
						for j := range tt.calls {
							ch, err := c.Go(hung(uint32(i<<10 + j + 1)))
							if err != nil {
								t.Fatal(err)
							}
							hanging = append(hanging, ch)
						}
					}
					h.Eventually("the Calls have come", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Used > 0 })
					check(t, h.Client(p.Addr("nfs")), message(1))
					answerAll(t, p.Addr("nfs"), message)
					for _, ch := range hanging {
						select {
						case <-ch:
							t.Fatal("a Call that hangs has ended: others may have waited for it")
						default:
						}
					}
				})
			}
		}
	}
}

// TestCallsThatHangBehindTwoBridges: what TestCallsThatHang says holds for the clients of a bridge whose upstream is
// another bridge, for which they are all one host, when the Calls that hang are the very first. Replies carry the grants
// of the far bridge, so it must raise them although little comes back.
func TestCallsThatHangBehindTwoBridges(t *testing.T) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, tt := range []struct{ clients, calls int }{{1, 16}, {16, 1}, {24, 2}} {
		for _, rdma := range []bool{false, true} {
			atOnce(t, &all, fmt.Sprintf("%d clients of %d Calls, over RDMA %v", tt.clients, tt.calls, rdma), func(t *testing.T) {
				h := proxytest.NewHarness(t, budget)
				storage := settings.UpstreamOptions{
					Name: "storage", Endpoints: []string{h.TCPServer(proxytest.Behaviour{Intercept: hangs}).Addr()},
					Connections: 4, Credits: 32, SlowStart: 16, CallTimeout: 5 * proxytest.CallTimeout,
				}
				between := settings.ListenerOptions{Name: "between", Address: "127.0.0.1:0", Upstream: "storage"}
				far := settings.UpstreamOptions{Name: "far", Connections: 4, Credits: 32, SlowStart: 16, CallTimeout: 5 * proxytest.CallTimeout}
				if rdma {
					provider := fabrictest.NewLoopback()
					between.RDMA, between.Provider, between.Address = true, provider, "far"
					far.RDMA, far.Provider = true, provider
				}
				b := proxytest.NewHarness(t, budget).Proxy([]settings.ListenerOptions{between}, []settings.UpstreamOptions{storage})
				far.Endpoints = []string{b.Addr("between")}
				p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "far"}}, []settings.UpstreamOptions{far})
				var hanging []<-chan []byte
				for i := range tt.clients {
					c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, byte(1+i)), p.Addr("nfs"))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { c.Close() })
					for j := range tt.calls {
						ch, err := c.Go(proxytest.ReadCall(uint32(i<<10+j+1), 0, 100))
						if err != nil {
							t.Fatal(err)
						}
						hanging = append(hanging, ch)
					}
				}
				h.Eventually("the Calls have come", func() bool { return b.Status(status.Query{}).Upstreams[0].Credits.Used > 0 })
				answerAll(t, p.Addr("nfs"), proxytest.GetattrCall)
				for _, ch := range hanging {
					select {
					case <-ch:
						t.Fatal("a Call that hangs has ended: others may have waited for it")
					default:
					}
				}
			})
		}
	}
}
