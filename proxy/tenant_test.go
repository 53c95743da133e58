package proxy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// A tenantBench is a proxy whose clients, over TCP or RDMA, come from addresses of two tenants: greedy has
// 127.0.1.1 to 127.0.1.7, and modest 127.0.1.8 to 127.0.1.15. The server holds READs until release.
type tenantBench struct {
	*proxytest.Harness
	p       *proxy.Proxy
	rdma    bool
	loop    loop.Loop
	release func()
	reads   atomic.Int64 // READs at the server
	most    atomic.Int64 // of them at once
}

// A tenantClient is a client of either transport.
type tenantClient interface {
	Go(m []byte) (<-chan []byte, error)
	Call(m []byte) ([]byte, error)
	Close() error
}

// eachTenantBench calls f with a bench for each transport.
func eachTenantBench(t *testing.T, greedy, modest admit.TenantOptions, f func(t *testing.T, x *tenantBench)) {
	for name, rdma := range map[string]bool{"tcp": false, "rdma": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			x := &tenantBench{Harness: h, rdma: rdma}
			hold := make(chan struct{})
			x.release = sync.OnceFunc(func() { close(hold) })
			t.Cleanup(x.release)
			s := h.TCPServer(proxytest.Behaviour{InterceptTCP: func(c *oncrpc.Call, from *proxytest.TCPConn) ([]byte, bool) {
				if c.Procedure != procRead {
					return nil, false
				}
				n := x.reads.Add(1)
				for most := x.most.Load(); n > most && !x.most.CompareAndSwap(most, n); most = x.most.Load() {
				}
				reply := proxytest.Expected(c.Message)
				go func() {
					<-hold
					x.reads.Add(-1)
					from.Send(reply)
				}()
				return nil, true
			}})
			l := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}
			if rdma {
				l.RDMA, l.Provider = true, proxytest.IWARP(iwarp.Options{})
				x.loop = h.Engine.Loops()[0]
			}
			x.p = h.Proxy([]settings.ListenerOptions{l}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024, Share: 100}})
			x.set(greedy, modest)
			f(t, x)
		})
	}
}

// set puts the tenants in force.
func (x *tenantBench) set(greedy, modest admit.TenantOptions) {
	x.T.Helper()
	greedy.Name, greedy.Clients = "greedy", []netip.Prefix{netip.MustParsePrefix("127.0.1.0/29")}
	modest.Name, modest.Clients = "modest", []netip.Prefix{netip.MustParsePrefix("127.0.1.8/29")}
	if err := x.p.SetTenants([]admit.TenantOptions{greedy, modest}); err != nil {
		x.T.Fatal(err)
	}
}

// dial connects from 127.0.1.i.
func (x *tenantBench) dial(i byte) (tenantClient, error) {
	from := net.IPv4(127, 0, 1, i)
	var c tenantClient
	var err error
	if x.rdma {
		c, err = x.DialRDMA(proxytest.IWARP(iwarp.Options{Source: netip.AddrFrom4([4]byte(from.To4()))}), x.loop, x.p.Addr("nfs"), rdmaside.RequesterOptions{})
	} else {
		c, err = proxytest.DialClientFrom(from, x.p.Addr("nfs"))
	}
	if err == nil {
		x.T.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// client is a client from 127.0.1.i that has had a Reply: an RDMA client has one credit before that.
func (x *tenantBench) client(i byte) tenantClient {
	x.T.Helper()
	c, err := x.dial(i)
	if err == nil {
		_, err = c.Call(proxytest.GetattrCall(uint32(i)<<24 + 1))
	}
	if err != nil {
		x.T.Fatal(err)
	}
	return c
}

// clients does what client does, for several.
func (x *tenantBench) clients(all ...byte) (cs []tenantClient) {
	x.T.Helper()
	for _, i := range all {
		cs = append(cs, x.client(i))
	}
	return cs
}

// read sends n READs of size octets.
func (x *tenantBench) read(c tenantClient, xid uint32, n int, size uint32) (replies []<-chan []byte) {
	x.T.Helper()
	for i := range uint32(n) {
		ch, err := c.Go(proxytest.ReadCall(xid+i, 0, size))
		if err != nil {
			x.T.Fatal(err)
		}
		replies = append(replies, ch)
	}
	return replies
}

// answered checks that all Calls are answered.
func (x *tenantBench) answered(replies []<-chan []byte) {
	x.T.Helper()
	for i, ch := range replies {
		if _, ok := <-ch; !ok {
			x.T.Fatalf("Call %d of %d has no Reply", i, len(replies))
		}
	}
}

// works checks that clients of the other tenant are served.
func (x *tenantBench) works(n int) {
	x.T.Helper()
	c := x.client(9)
	for i := range uint32(n) {
		m := proxytest.GetattrCall(i + 2)
		if r, err := c.Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
			x.T.Fatalf("Call %d of another tenant: %v", i, err)
		}
	}
	_ = c.Close()
}

// tenant returns what the status says of a tenant.
func (x *tenantBench) tenant(name string) status.Tenant {
	x.T.Helper()
	for _, t := range x.p.Status(status.Query{}).Tenants {
		if t.Name == name {
			return t
		}
	}
	x.T.Fatalf("no tenant %s", name)
	return status.Tenant{}
}

func (x *tenantBench) refused(reason string) int {
	return metric(x.Harness, fmt.Sprintf("listener_refused_connections_total{listener=\"nfs\",reason=%q}", reason))
}

// attempts is how many connections a dial makes that is refused: an iWARP client tries two kinds of Request.
func (x *tenantBench) attempts() int {
	if x.rdma {
		return 2
	}
	return 1
}

// loopsOver is by how many Calls a limit may be exceeded: one for each event loop of the harness but the first.
const loopsOver = 1

// TestTenantCalls: a tenant has as many Calls under way as it may, and its other Calls wait. Another tenant
// does not notice.
func TestTenantCalls(t *testing.T) {
	for name, o := range map[string]admit.TenantOptions{
		"total":   {Total: admit.TenantLimits{Calls: 4}},
		"address": {Address: admit.TenantLimits{Calls: 2}},
		"both":    {Total: admit.TenantLimits{Calls: 4}, Address: admit.TenantLimits{Calls: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			eachTenantBench(t, o, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
				var replies []<-chan []byte
				for i, c := range x.clients(1, 2, 1, 2) {
					replies = append(replies, x.read(c, uint32(i)<<16+10, 8, 100)...)
				}
				x.Eventually("the tenant has what it may, and its clients wait", func() bool {
					d := x.tenant("greedy")
					return x.reads.Load() >= 4 && d.InFlight >= 4 && d.Waiting["total"]+d.Waiting["address"] == 4
				})
				x.works(200)
				if d := x.tenant("greedy"); d.InFlight > 4+2*loopsOver || d.Addresses != 2 || d.Clients != 4 {
					t.Errorf("after other Calls: %+v", d)
				}
				x.release()
				x.answered(replies)
				if n := x.most.Load(); n > 4+2*loopsOver {
					t.Errorf("%d Calls were at the server at once, want 4", n)
				}
				x.Eventually("nothing is under way", func() bool {
					d := x.tenant("greedy")
					return d.InFlight == 0 && d.Memory == 0 && len(d.Waiting) == 0 && d.Calls >= 32
				})
			})
		})
	}
}

// TestTenantMemory: the expected Replies count for the memory of a tenant before they come.
func TestTenantMemory(t *testing.T) {
	o := admit.TenantOptions{Total: admit.TenantLimits{Memory: 4 << 20}, Address: admit.TenantLimits{Memory: 2 << 20}}
	eachTenantBench(t, o, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
		var replies []<-chan []byte
		for i, c := range x.clients(1, 2, 3) {
			replies = append(replies, x.read(c, uint32(i)<<16+10, 6, 1<<20)...)
		}
		x.Eventually("the tenant has what it may, and its clients wait", func() bool {
			d := x.tenant("greedy")
			return d.Memory >= 4<<20 && d.Waiting["total"]+d.Waiting["address"] == 3
		})
		x.works(50)
		if d := x.tenant("greedy"); d.Memory > (4+1+loopsOver)<<20+1<<17 {
			t.Errorf("%d octets count for the tenant", d.Memory)
		}
		x.release()
		x.answered(replies)
		if n := x.most.Load(); n > 5+loopsOver {
			t.Errorf("%d READs of 1 MiB were under way at once in 4 MiB", n)
		}
		x.Eventually("nothing is under way", func() bool { d := x.tenant("greedy"); return d.InFlight == 0 && d.Memory == 0 })
	})
}

// TestTenantIncompleteCalls: clients of a tenant that begin long Calls and do not send the rest hold no more
// than the tenant's memory. Another tenant's long Calls arrive meanwhile, and theirs when they are sent.
func TestTenantIncompleteCalls(t *testing.T) {
	const clients, long, begun = 40, 1 << 20, 48 << 10
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
	x := &tenantBench{Harness: h, p: p}
	x.set(admit.TenantOptions{Total: admit.TenantLimits{Memory: 4 << 20}}, admit.TenantOptions{})
	var cs []*proxytest.Client
	var calls [][]byte
	for i := range clients {
		c := x.client(byte(1 + i%6)).(*proxytest.Client)
		m := proxytest.WriteCall(uint32(i+2), 0, long)
		m = append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(m))), m...)
		if _, err := c.Conn.Write(m[:begun]); err != nil {
			t.Fatal(err)
		}
		cs, calls = append(cs, c), append(calls, m)
	}
	x.Eventually("clients wait for memory", func() bool { return x.tenant("greedy").Waiting["memory"] >= clients/2 })
	if d := x.tenant("greedy"); d.Memory > 4<<20 {
		t.Errorf("the tenant has %d octets of incomplete Calls", d.Memory)
	}
	other := x.client(9)
	for i := range uint32(20) {
		m := proxytest.WriteCall(i+2, 0, long)
		if r, err := other.Call(m); err != nil || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Fatalf("WRITE of another tenant: %v", err)
		}
	}
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			if _, err := c.Conn.Write(calls[i][begun:]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	x.Eventually("all Calls are answered", func() bool { d := x.tenant("greedy"); return d.Calls == 2*clients && d.Memory == 0 })
}

// TestTenantConnections: connections beyond the limits of a tenant are refused, and those of another are not.
func TestTenantConnections(t *testing.T) {
	eachTenantBench(t, admit.TenantOptions{Total: admit.TenantLimits{Connections: 3}, Address: admit.TenantLimits{Connections: 2}}, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
		var in []tenantClient
		for _, i := range []byte{1, 1, 1, 2, 2} {
			c, err := x.dial(i)
			if err == nil {
				if _, err = c.Call(proxytest.GetattrCall(uint32(len(in) + 1))); err == nil {
					in = append(in, c)
				}
			}
		}
		if len(in) != 3 {
			t.Errorf("%d connections, want 3", len(in))
		}
		x.Eventually("refusals are counted", func() bool {
			d := x.tenant("greedy")
			n := x.attempts()
			return x.refused("tenant_connections") == n && x.refused("tenant_connections_per_address") == n &&
				d.Refused["connections"] == uint64(n) && d.Refused["connections_per_address"] == uint64(n) && d.Clients == 3
		})
		for range 5 {
			x.works(1)
		}
		_ = in[0].Close()
		x.Eventually("there is room again", func() bool { return x.tenant("greedy").Clients == 2 })
		x.client(2)
	})
}

// TestTenantArrivals: a storm of connections from one address is refused, and other addresses connect.
func TestTenantArrivals(t *testing.T) {
	const storm = 60
	for _, tt := range []struct {
		name, reason, ofTenant string
		greedy                 admit.TenantOptions
	}{
		{"address", "tenant_connection_rate_per_address", "rate_per_address", admit.TenantOptions{Address: admit.TenantLimits{ConnectionsRate: 5}}},
		{"total", "tenant_connection_rate", "rate", admit.TenantOptions{Total: admit.TenantLimits{ConnectionsRate: 5}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachTenantBench(t, tt.greedy, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
				began := time.Now()
				for range storm {
					_, _ = x.dial(1)
				}
				x.works(1)
				x.Eventually("all are let in or refused", func() bool { return x.tenant("greedy").Clients+x.refused(tt.reason)/x.attempts() >= storm-1 })
				d := x.tenant("greedy")
				if most := 5 + int(5*time.Since(began)/time.Second) + 1; d.Clients > most {
					t.Errorf("%d of the storm are let in, want at most %d", d.Clients, most)
				}
				if d.Clients < 5 || int(d.Refused[tt.ofTenant]) != x.refused(tt.reason) {
					t.Errorf("tenant %+v", d)
				}
			})
		})
	}
}

// TestTenantRate: a tenant over its rate is not read from for a while, and another is. No Call is lost.
func TestTenantRate(t *testing.T) {
	for name, o := range map[string]admit.TenantOptions{
		"total":   {Total: admit.TenantLimits{Rate: gates.Rate{Calls: 100}}},
		"address": {Address: admit.TenantLimits{Rate: gates.Rate{Calls: 100}}},
		"octets":  {Total: admit.TenantLimits{Rate: gates.Rate{Octets: 256 << 10}}},
	} {
		t.Run(name, func(t *testing.T) {
			eachTenantBench(t, o, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
				x.release()
				c := x.client(1)
				x.answered(x.read(c, 10, 30, 4096))
				replies := x.read(c, 1000, 30, 4096)
				x.Eventually("the client waits", func() bool {
					d := x.tenant("greedy")
					return d.Waits["total_rate"]+d.Waits["address_rate"] > 0
				})
				x.works(200)
				if d := x.tenant("modest"); len(d.Waits) != 0 {
					t.Errorf("the other tenant waits: %+v", d)
				}
				x.answered(replies)
			})
		})
	}
}

// TestTenantReload: clients that are connected follow the tenants in force.
func TestTenantReload(t *testing.T) {
	eachTenantBench(t, admit.TenantOptions{Total: admit.TenantLimits{Calls: 2}}, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
		c := x.client(1)
		replies := x.read(c, 10, 8, 100) // the credits of an RDMA client
		wait := func(what string, n int64, f func() bool) {
			t.Helper()
			x.Eventually(what, func() bool { return x.reads.Load() == n && f() })
		}
		greedy := func(calls int) func() bool {
			return func() bool { return x.tenant("greedy").InFlight == calls }
		}
		wait("two Calls are under way", 2, greedy(2))
		x.set(admit.TenantOptions{Total: admit.TenantLimits{Calls: 5}}, admit.TenantOptions{})
		wait("five are, after the limit is raised", 5, greedy(5))
		x.set(admit.TenantOptions{Total: admit.TenantLimits{Calls: 1, Connections: 1}}, admit.TenantOptions{})
		wait("they stay when it is lowered", 5, greedy(5))

		// The client's address moves to another tenant, which has a limit of its own.
		err := x.p.SetTenants([]admit.TenantOptions{
			{Name: "new", Clients: []netip.Prefix{netip.MustParsePrefix("127.0.1.1/32")}, Total: admit.TenantLimits{Calls: 7}},
			{Name: "greedy", Clients: []netip.Prefix{netip.MustParsePrefix("127.0.1.0/29")}, Total: admit.TenantLimits{Calls: 1}},
		})
		if err != nil {
			t.Fatal(err)
		}
		wait("the other tenant has its Calls", 7, func() bool {
			d := x.tenant("greedy")
			return x.tenant("new").InFlight == 7 && d.InFlight == 0 && d.Memory == 0 && d.Clients == 0 && d.Addresses == 0
		})
		if s := x.p.Status(status.Query{}).Clients.List[0]; s.Tenant != "new" || len(s.Waiting) != 1 || s.Waiting[0] != "tenant" {
			t.Errorf("client %+v", s)
		}
		if err := x.p.SetTenants(nil); err != nil {
			t.Fatal(err)
		}
		wait("without tenants all Calls are under way", 8, func() bool { return len(x.p.Status(status.Query{}).Tenants) == 0 })
		if n := metric(x.Harness, "tenant_"); n != 0 {
			t.Errorf("the series of tenants that are gone add up to %d", n)
		}
		x.set(admit.TenantOptions{Total: admit.TenantLimits{Calls: 3}}, admit.TenantOptions{})
		x.release()
		x.answered(replies)
		x.Eventually("nothing is under way", func() bool {
			d := x.tenant("greedy")
			return d.InFlight == 0 && d.Memory == 0 && d.Clients == 1
		})
		for i := range uint32(50) {
			if _, err := c.Call(proxytest.GetattrCall(100 + i)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestTenantClientsThatGo: clients that end while they wait, or while their Calls are under way, leave nothing
// behind, and those that wait behind them go on.
func TestTenantClientsThatGo(t *testing.T) {
	eachTenantBench(t, admit.TenantOptions{Total: admit.TenantLimits{Calls: 3}, Address: admit.TenantLimits{Calls: 2}}, admit.TenantOptions{}, func(t *testing.T, x *tenantBench) {
		going := x.clients(1, 2, 3, 1, 2, 3)
		for i, c := range going {
			x.read(c, uint32(i)<<16+10, 4, 100)
		}
		x.Eventually("clients wait", func() bool { return x.reads.Load() >= 3 && x.tenant("greedy").Waits["total"] > 0 })
		stays := x.client0(4)
		replies := x.read(stays, 10, 8, 100)
		for _, c := range going {
			_ = c.Close()
		}
		x.release() // a TCP client that is not read from is not seen to end before it is its turn
		x.answered(replies)
		x.Eventually("one client is left", func() bool { return x.tenant("greedy").Clients == 1 })
		x.Eventually("nothing is left", func() bool {
			d := x.tenant("greedy")
			return d.InFlight == 0 && d.Memory == 0 && d.Addresses == 1 && len(d.Waiting) == 0
		})
	})
}

// client0 is a client from 127.0.1.i that has had no Reply.
func (x *tenantBench) client0(i byte) tenantClient {
	x.T.Helper()
	c, err := x.dial(i)
	if err != nil {
		x.T.Fatal(err)
	}
	return c
}

// TestListenerArrivals: new connections beyond the rate of a TCP listener wait until they are accepted, and those
// beyond the rate of an address are refused and take nothing from the others.
func TestListenerArrivals(t *testing.T) {
	t.Parallel()
	const storm = 40
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", ConnectionsRate: 20, ClientConnectionsRate: 5}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
	began := time.Now()
	for range storm {
		_, _ = from(t, p.Addr("nfs"), 1)
	}
	for i := range 25 { // five more than may come at once
		if _, ok := works(t, p.Addr("nfs"), 2+i); !ok {
			t.Errorf("client %d is not served", i)
		}
	}
	if d := time.Since(began); d < 400*time.Millisecond {
		t.Errorf("30 connections at 20 a second came in %v", d)
	}
	h.Eventually("most of the storm is refused", func() bool {
		n := metric(h, `listener_refused_connections_total{listener="nfs",reason="connection_rate_per_address"}`)
		return n >= storm-5-5*int(time.Since(began)/time.Second+1) && n == metric(h, "listener_refused_connections_total")
	})
}
