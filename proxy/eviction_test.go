package proxy_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
)

// procRead is READ of NFSv3.
const procRead = 6

// from connects to addr from 127.0.1.i.
func from(t *testing.T, addr string, i int) (*proxytest.Client, error) {
	c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 1, byte(i)), addr)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// works reports whether a client from 127.0.1.i is served, and returns it.
func works(t *testing.T, addr string, i int) (*proxytest.Client, bool) {
	c, err := from(t, addr, i)
	if err != nil {
		return nil, false
	}
	_, err = c.Call(proxytest.GetattrCall(uint32(i)<<16 + 1))
	return c, err == nil
}

// holdReads starts a server that answers nothing from the first READ on until release is called.
func holdReads(h *proxytest.Harness) (s *proxytest.TCPServer, release func()) {
	hold := make(chan struct{})
	return h.TCPServer(proxytest.Behaviour{Intercept: func(c *oncrpc.Call) ([]byte, bool) {
		if c.Procedure == procRead {
			<-hold
		}
		return nil, false
	}}), sync.OnceFunc(func() { close(hold) })
}

// TestMakeRoom: one address may have all connections of a listener, until others come. Each of
// them has one of its connections, as long as it has more than they, and idle ones go first.
func TestMakeRoom(t *testing.T) {
	const most, busy, others = 8, 3, 4
	h := proxytest.NewHarness(t, budget)
	s, release := holdReads(h)
	defer release()
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", MaxConnections: most, MakeRoom: true}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
	addr := p.Addr("nfs")
	var clients []*proxytest.Client
	for i := range most {
		c, ok := works(t, addr, 1)
		if !ok {
			t.Fatalf("connection %d of %d of one address alone is refused", i+1, most)
		}
		clients = append(clients, c)
	}
	var reads []<-chan []byte
	for i, c := range clients[most-busy:] { // the newest
		ch, err := c.Go(proxytest.ReadCall(uint32(i+2), 0, 100))
		if err != nil {
			t.Fatal(err)
		}
		reads = append(reads, ch)
	}
	h.Eventually("the Calls are under way", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Used == busy })
	if c, err := from(t, addr, 1); err == nil {
		_, err = c.Call(proxytest.GetattrCall(1))
		if err == nil {
			t.Error("an address alone has more than all connections")
		}
	}
	var newcomers []<-chan []byte
	for i := range others {
		c, err := from(t, addr, 2+i)
		if err != nil {
			t.Fatal(err)
		}
		ch, err := c.Go(proxytest.GetattrCall(uint32(i + 10)))
		if err != nil {
			t.Fatalf("newcomer %d is refused while one address has most of the connections: %v", i, err)
		}
		newcomers = append(newcomers, ch)
		h.Eventually("a connection is closed for it", func() bool { return metric(h, `listener_evicted_clients_total{listener="nfs"}`) == i+1 })
		h.Eventually("the listener is at its limit again", func() bool { return metric(h, `listener_clients{listener="nfs"}`) == most })
	}
	release()
	for i, ch := range newcomers {
		if r, ok := <-ch; !ok || r == nil {
			t.Errorf("newcomer %d was not served", i)
		}
	}
	for i, ch := range reads {
		if r, ok := <-ch; !ok || r == nil {
			t.Errorf("busy connection %d was closed while idle ones were left", i)
		}
	}
	// 4 of one address, and 4 of one each: a second one of an address leaves 3 and 2.
	if _, ok := works(t, addr, 2); !ok {
		t.Error("a second connection is refused to an address with one beside an address with four")
	}
	h.Eventually("the listener is at its limit again", func() bool { return metric(h, `listener_clients{listener="nfs"}`) == most })
	if _, ok := works(t, addr, 2); ok {
		t.Error("a third connection would be as many as the largest address has")
	}
}

// TestMakeRoomOfBusyHost: when no connection of the largest host is idle, the newest goes.
func TestMakeRoomOfBusyHost(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s, release := holdReads(h)
	defer release()
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", MaxConnections: 4, MakeRoom: true}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, SlowStart: 1024}})
	var last <-chan []byte
	for i := range 4 {
		c, err := from(t, p.Addr("nfs"), 1)
		if err != nil {
			t.Fatal(err)
		}
		if last, err = c.Go(proxytest.ReadCall(uint32(i+2), 0, 100)); err != nil {
			t.Fatal(err)
		}
		h.Eventually("its Call is under way", func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Used == i+1 })
	}
	if _, err := from(t, p.Addr("nfs"), 2); err != nil {
		t.Fatal(err)
	}
	if r, ok := <-last; ok && r != nil {
		t.Error("the newest connection was answered")
	}
}

// TestMakeRoomWeights: with a weight, a gateway has as many connections as its clients need; and
// without MakeRoom newcomers are refused.
func TestMakeRoomWeights(t *testing.T) {
	for _, tt := range []struct {
		name string
		lo   settings.ListenerOptions
		want bool
	}{
		{"weight 1", settings.ListenerOptions{MakeRoom: true}, true},
		{"weight 9", settings.ListenerOptions{MakeRoom: true, Weights: []admit.Weight{{Clients: []netip.Prefix{netip.MustParsePrefix("127.0.1.1/32")}, Weight: 9}}}, false},
		{"off", settings.ListenerOptions{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			s := h.TCPServer(proxytest.Behaviour{})
			tt.lo.Name, tt.lo.Address, tt.lo.Upstream, tt.lo.MaxConnections = "nfs", "127.0.0.1:0", "tcp", 8
			us := []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}}
			p := h.Proxy([]settings.ListenerOptions{tt.lo}, us)
			for range 8 {
				if _, ok := works(t, p.Addr("nfs"), 1); !ok {
					t.Fatal("refused below the limit")
				}
			}
			if _, ok := works(t, p.Addr("nfs"), 2); ok != tt.want {
				t.Errorf("a newcomer is let in: %v, want %v", ok, tt.want)
			}
			if tt.lo.Weights == nil {
				return
			}
			tt.lo.Weights = nil // the connected clients follow
			if err := p.Reconfigure(proxytest.Listeners(tt.lo), proxytest.Upstreams(us...)); err != nil {
				t.Fatal(err)
			}
			h.Eventually("a newcomer is let in after a reload", func() bool {
				_, ok := works(t, p.Addr("nfs"), 2)
				return ok
			})
		})
	}
}

// TestMakeRoomRDMA: the same over RDMA. A peer that only connects, and never sends a Request, has
// nobody closed; and the descriptors of RDMA clients are counted with those of TCP clients.
func TestMakeRoomRDMA(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	iw := proxytest.IWARP(iwarp.Options{})
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this host has no IPv6, and the test needs two addresses: ", err)
	}
	l.Close()
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "rdma", Address: "[::]:0", RDMA: true, Provider: iw, Upstream: "tcp", MaxConnections: 4, MakeRoom: true},
		{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp", MakeRoom: true},
	}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}}})
	_, port, _ := net.SplitHostPort(p.Addr("rdma"))
	dial := func(ip string) (*proxytest.RDMAClient, error) {
		c, err := h.DialRDMA(iw, h.Engine.Loops()[0], net.JoinHostPort(ip, port), rdmaside.RequesterOptions{IdleReceives: 4})
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			_, err = c.Call(proxytest.GetattrCall(1))
		}
		return c, err
	}
	clients := func() bool { return metric(h, `listener_clients{listener="rdma"}`) == 4 }
	for range 4 {
		if _, err := dial("127.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dial("127.0.0.1"); err == nil {
		t.Error("a fifth connection of four")
	}
	for range 8 {
		nc, err := net.Dial("tcp", net.JoinHostPort("::1", port))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	h.Eventually("the silent ones are counted", func() bool { return h.Engine.Sockets().Open() == 4+8 })
	if !clients() {
		t.Error("a silent peer had a client closed")
	}
	for range 2 {
		if _, err := dial("::1"); err != nil {
			t.Fatalf("a newcomer: %v", err)
		}
		h.Eventually("the listener is at its limit again", clients)
	}
	if _, err := dial("::1"); err == nil {
		t.Error("a third connection of an address beside an address with two")
	}
	if n := metric(h, `listener_evicted_clients_total{listener="rdma"}`); n != 2 {
		t.Errorf("%d connections were closed for two newcomers", n)
	}

	// The descriptors of the process.
	h.Eventually("the refused ones have ended", func() bool { return h.Engine.Sockets().Open() == 4+8 })
	h.Engine.Sockets().SetLimit(4 + 8)
	if _, ok := works(t, p.Addr("nfs"), 7); !ok {
		t.Error("no descriptor for a TCP client while an address has two RDMA clients")
	}
	if n := metric(h, `listener_evicted_clients_total{listener="rdma"}`); n != 3 {
		t.Errorf("%d RDMA clients were closed for the TCP client", n)
	}
	h.Eventually("the descriptors are at their limit again", func() bool { return h.Engine.Sockets().Open() == 4+8 })
	nc, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	h.Eventually("a silent peer has to go for another", func() bool {
		return metric(h, `listener_refused_connections_total{listener="rdma",reason="sockets"}`) == 1
	})
}
