package proxy_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A nullOnly is an upstream of two endpoints. The server at the first answers NULL Calls, and other Calls
// not while sick is set.
type nullOnly struct {
	*proxytest.Harness
	p             *proxy.Proxy
	first, second string
	sick          atomic.Bool
	calls         atomic.Int64 // that came to the first and are not NULL
}

// newNullOnly makes a nullOnly. ends says that the server ends the connection at each Call; otherwise it is
// silent.
func newNullOnly(t *testing.T, rdma, ends bool, u settings.UpstreamOptions) *nullOnly {
	t.Helper()
	x := &nullOnly{Harness: proxytest.NewHarness(t, budget)}
	x.sick.Store(true)
	fails := func(c *oncrpc.Call) bool {
		if c.Procedure == 0 {
			return false
		}
		x.calls.Add(1)
		return x.sick.Load()
	}
	b := proxytest.Behaviour{Ends: fails}
	if !ends {
		b = proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) { return nil, fails(c) }}
	}
	if rdma {
		lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
		t.Cleanup(l.Stop)
		x.RDMAServer(lp, []loop.Loop{l}, "first", 32, b)
		x.RDMAServer(lp, []loop.Loop{l}, "second", 32, proxytest.Behaviour{})
		x.first, x.second = "first", "second"
		u.RDMA, u.Provider = true, lp
	} else {
		s := x.TCPServer(b)
		x.first, x.second = s.Addr(), x.TCPServer(proxytest.Behaviour{}).Addr()
	}
	u.Name, u.Failover, u.Priority, u.Endpoints = "storage", true, true, []string{x.first, x.second}
	u.BackoffMin, u.BackoffMax, u.UnavailableAfter = 5*time.Millisecond, 50*time.Millisecond, testkit.Patience
	u.ProbeInterval = 100 * time.Millisecond
	x.p = x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{u})
	x.Eventually("the upstream is connected", func() bool { return x.p.Status(status.Query{}).Upstreams[0].Usable > 0 })
	return x
}

// answered waits until a client is answered, which connects again when its connection is closed.
func (x *nullOnly) answered(m []byte) {
	x.T.Helper()
	x.Eventually("a client is answered", func() bool {
		c, err := proxytest.DialClient(x.p.Addr("nfs"))
		if err != nil {
			return false
		}
		defer c.Close()
		r, err := c.Call(m)
		return err == nil && bytes.Equal(r, proxytest.Expected(m))
	})
}

// endpoint is what the status document says of the first endpoint.
func (x *nullOnly) endpoint() status.Endpoint {
	return x.p.Status(status.Query{}).Upstreams[0].Endpoints[0]
}

// tried is how many more Calls have come to the first endpoint than it was ejected.
func (x *nullOnly) tried() int { return int(x.calls.Load()) - int(x.endpoint().Ejections) }

// TestNullOnly: an endpoint that answers NULL Calls, and other Calls not, is left for one that answers them,
// whatever connections carry them.
func TestNullOnly(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, rdma := range []bool{false, true} {
		for _, ends := range []bool{false, true} {
			for _, how := range []struct {
				name string
				mode settings.Mode
				call []byte
			}{
				{"shared", settings.ModeAuto, proxytest.GetattrCall(1)},
				{"lane", settings.ModeAuto, proxytest.SequenceCall(1)},
				{"pinned", settings.ModePinned, proxytest.GetattrCall(1)},
			} {
				atOnce(t, &all, fmt.Sprintf("rdma %v, ends %v, %s", rdma, ends, how.name), func(t *testing.T) {
					x := newNullOnly(t, rdma, ends, settings.UpstreamOptions{Connections: 2, CallTimeout: time.Second, Mode: how.mode})
					x.answered(how.call)
					e := x.endpoint()
					if e.State != status.EndpointEjected || e.Reason == "" {
						t.Errorf("the first endpoint is %v, reason %q", e.State, e.Reason)
					}
					tried := x.tried()
					for xid := range uint32(20) {
						x.answered(proxytest.WithXID(how.call, 100+xid))
					}
					if n := x.tried() - tried; n > 1 {
						t.Errorf("%d more Calls than ejections have come to the first endpoint", n)
					}
				})
			}
		}
	}
}

// TestNullOnlyReturns: an endpoint that answered NULL Calls alone is used again when it answers others, and
// is tried with one Call at a time meanwhile.
func TestNullOnlyReturns(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, rdma := range []bool{false, true} {
		for _, ends := range []bool{false, true} {
			atOnce(t, &all, fmt.Sprintf("rdma %v, ends %v", rdma, ends), func(t *testing.T) {
				x := newNullOnly(t, rdma, ends, settings.UpstreamOptions{Connections: 2, CallTimeout: time.Second})
				x.answered(proxytest.GetattrCall(1))
				c, xid := x.Client(x.p.Addr("nfs")), uint32(100)
				before, tried := x.endpoint().Ejections, x.tried()
				x.Eventually("the first endpoint has been tried twice", func() bool {
					xid++
					check(t, c, proxytest.GetattrCall(xid))
					return t.Failed() || x.endpoint().Ejections >= before+2
				})
				if n := x.tried() - tried; n > 1 {
					t.Errorf("%d more Calls than ejections have tried the first endpoint", n)
				}
				x.sick.Store(false)
				x.Eventually("the first endpoint is back", func() bool {
					xid++
					check(t, c, proxytest.GetattrCall(xid))
					return x.endpoint().State == status.EndpointUsed && connectedTo(x.p, x.first) > 0
				})
			})
		}
	}
}

// TestPoison: a Call that ends each connection does not eject all endpoints, and clients whose Calls do not are served
// throughout.
func TestPoison(t *testing.T) {
	t.Parallel()
	x := proxytest.NewHarness(t, budget)
	b := proxytest.Behaviour{Ends: func(c *oncrpc.Call) bool { return c.Program == oncrpc.ProgramNFS && c.Procedure == 6 }}
	var endpoints []string
	for range 3 {
		endpoints = append(endpoints, x.TCPServer(b).Addr())
	}
	p := x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
		Name: "storage", Endpoints: endpoints, Failover: true, Connections: 3, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
	}})
	for xid := uint32(1); xid < 20; xid++ {
		c := x.Client(p.Addr("nfs"))
		if r, err := c.Call(proxytest.ReadCall(xid, 0, 100)); err == nil {
			t.Fatalf("the Call was answered with %x", r)
		}
		well := 0
		for _, e := range p.Status(status.Query{}).Upstreams[0].Endpoints {
			if e.State != status.EndpointEjected {
				well++
			}
		}
		if well == 0 {
			t.Fatal("all endpoints are ejected")
		}
		check(t, x.Client(p.Addr("nfs")), proxytest.GetattrCall(xid))
	}
}

// TestOneExportHangs: an endpoint that answers Calls of one client and not those of another stays.
func TestOneExportHangs(t *testing.T) {
	t.Parallel()
	for _, call := range []func(xid uint32) []byte{proxytest.GetattrCall, proxytest.SequenceCall} {
		x := proxytest.NewHarness(t, budget)
		first, second := x.TCPServer(proxytest.Behaviour{Intercept: hangs}), x.TCPServer(proxytest.Behaviour{})
		p := x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
			Name: "storage", Endpoints: []string{first.Addr(), second.Addr()}, Failover: true, Priority: true, Connections: 2, CallTimeout: 3 * time.Second,
			BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
		}})
		hung := x.Client(p.Addr("nfs"))
		stuck, err := hung.Go(hungCall(1))
		if err != nil {
			t.Fatal(err)
		}
		c, xid := x.Client(p.Addr("nfs")), uint32(100)
		x.Eventually("the client is closed whose Call is late", func() bool {
			check(t, c, call(xid))
			xid++
			return ended(stuck) || t.Failed()
		})
		if n := second.Calls.Load(); n > 0 {
			t.Errorf("%d Calls have left the endpoint, which answers", n)
		}
	}
}

// TestNullOnlyAddress: a name has two addresses, and the server at the first answers NULL Calls alone. The
// clients are served at the second.
func TestNullOnlyAddress(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, ends := range []bool{false, true} {
		for name, call := range map[string][]byte{"shared": proxytest.GetattrCall(1), "lane": proxytest.SequenceCall(1)} {
			name = fmt.Sprintf("%s-%v", name, ends)
			atOnce(t, &all, name, func(t *testing.T) {
				x := newTwoAddresses(t, name+".test", false, func(c *proxytest.TCPConn) {
					_ = proxytest.ReadMessages(c, func(m []byte) bool {
						var h oncrpc.Call
						if oncrpc.ParseCall(m, &h) != nil {
							return false
						}
						if h.Procedure == 0 {
							c.Send(oncrpc.AppendAccepted(nil, h.XID, oncrpc.Success))
							return true
						}
						return !ends
					}, func([]byte) bool { return false })
				})
				n := nullOnly{Harness: x.Harness}
				n.p = x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{{
					Name: "storage", Endpoints: []string{x.endpoint}, Connections: 1, CallTimeout: time.Second, ProbeInterval: 100 * time.Millisecond,
					UnavailableAfter: testkit.Patience, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
				}})
				n.answered(call)
				if x.tried.Load() == 0 {
					t.Error("the first address was not tried")
				}
			})
		}
	}
}
