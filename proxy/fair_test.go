package proxy_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
)

// keepBusy keeps depth WRITEs of n octets outstanding on c until stop, and counts the
// octets that were written. XIDs begin behind xid: clients are at one address here.
func keepBusy(t *testing.T, c *proxytest.Client, xid uint32, depth, n int, stop <-chan struct{}, had *atomic.Int64) {
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, depth)
	m := proxytest.WriteCall(0, 1, n)
	for {
		xid++
		select {
		case <-stop:
			return
		case free <- struct{}{}:
		}
		m[0], m[1], m[2], m[3] = byte(xid>>24), byte(xid>>16), byte(xid>>8), byte(xid)
		ch, err := c.Go(m)
		if err != nil {
			t.Error(err)
			return
		}
		wg.Go(func() {
			if _, ok := <-ch; !ok {
				t.Error("a connection ended")
			}
			had.Add(int64(n))
			<-free
		})
	}
}

// One client with 64 WRITEs of 1 MiB outstanding and 31 with small ones: octets are
// shared evenly while all of them wait for the server.
func TestHog(t *testing.T) {
	h := proxytest.NewHarness(t, 512<<20)
	p, _ := forward(t, h, 8, proxytest.Behaviour{Delay: time.Millisecond}, func(_ *proxy.ListenerOptions, u *proxy.UpstreamOptions) {
		u.Connections = 1
	})
	had := make([]atomic.Int64, 32)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range had {
		c := h.Client(p.Addr("nfs"))
		depth, n := 32, 16<<10
		if i == 0 {
			depth, n = 64, 1<<20
		}
		wg.Go(func() { keepBusy(t, c, uint32(i)<<20, depth, n, stop, &had[i]) })
	}
	// Once all of them wait, what is counted is the difference.
	until := func(n int64) (shares []float64) {
		h.Eventually("the hog has had its share", func() bool { return had[0].Load() >= n })
		for i := range had {
			shares = append(shares, float64(had[i].Load()))
		}
		return shares
	}
	first, last := until(2<<20), until(9<<20)
	close(stop)
	wg.Wait()
	var sum, squares float64
	for i := range last {
		x := last[i] - first[i]
		sum, squares = sum+x, squares+x*x
	}
	if j := sum * sum / (squares * float64(len(last))); j < 0.95 {
		t.Errorf("Jain's index is %.3f: %.0f to %.0f", j, first, last)
	}
}

// However many Calls clients have, few are read in while the upstream does not
// answer, and all are answered when it does. On both transports a client that was
// made to wait goes on.
func TestRampOfAStalledUpstream(t *testing.T) {
	const clients, deep = 12, 30
	for _, rdma := range []bool{false, true} {
		h := proxytest.NewHarness(t, budget)
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		s := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) {
			<-gate
			return nil, false
		}})
		lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
		t.Cleanup(l.Stop)
		p := h.Proxy([]proxy.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", RDMA: rdma, Provider: lp, Upstream: "tcp", Credits: 64}},
			[]proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}})
		var chs []<-chan []byte
		for i := range uint32(clients) {
			var send func(m []byte) (<-chan []byte, error)
			if rdma {
				send = h.RDMAClient(lp, fabric.Loop(l), p.Addr("nfs"), 0).Go
			} else {
				send = h.Client(p.Addr("nfs")).Go
			}
			for j := range uint32(deep) {
				ch, err := send(proxytest.GetattrCall(i<<8 + j + 1))
				if err != nil {
					t.Fatal(err)
				}
				chs = append(chs, ch)
			}
		}
		in := func() int { st := p.Status().Upstreams[0]; return st.Outstanding + st.Queued }
		least := 16
		if rdma {
			least = clients // who has no Reply yet has one credit: RFC 8166 Section 3.3.3
		}
		h.Eventually("the ramp is full", func() bool { return in() >= least })
		time.Sleep(20 * time.Millisecond)
		if n := in(); n > 15+clients {
			t.Errorf("rdma %v: %d Calls were let in of %d, want 16 and one of each client at most", rdma, n, clients*deep)
		}
		if n := p.Status().Upstreams[0].Outstanding; n > 16 {
			t.Errorf("rdma %v: %d Calls were let out", rdma, n)
		}
		open()
		for i, ch := range chs {
			select {
			case _, ok := <-ch:
				if !ok {
					t.Fatalf("rdma %v: call %d: the connection has ended", rdma, i)
				}
			case <-time.After(proxytest.CallTimeout):
				t.Fatalf("rdma %v: call %d is not answered", rdma, i)
			}
		}
	}
}

// Rates make clients wait, of one address together, and drop nothing.
func TestRates(t *testing.T) {
	const clients, calls = 4, 40
	for _, tt := range []struct {
		name string
		rdma bool
		set  func(*proxy.ListenerOptions)
	}{
		{"listener", false, func(o *proxy.ListenerOptions) { o.Rate.Calls = 200 }},
		{"client", false, func(o *proxy.ListenerOptions) { o.ClientRate.Calls = 200 }},
		{"octets", false, func(o *proxy.ListenerOptions) { o.ClientRate.Octets = 200 * 1200 }},
		{"rdma", true, func(o *proxy.ListenerOptions) { o.ClientRate.Calls = 200 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := proxytest.NewHarness(t, budget)
			s := h.TCPServer(proxytest.Behaviour{})
			lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			lo := proxy.ListenerOptions{
				Name: "nfs", Address: "127.0.0.1:0", RDMA: tt.rdma, Provider: lp, Upstream: "tcp",
				Weights: []proxy.Weight{{Clients: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Weight: 3}},
			}
			tt.set(&lo)
			p := h.Proxy([]proxy.ListenerOptions{lo}, []proxy.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}})
			began := time.Now()
			var wg sync.WaitGroup
			for i := range uint32(clients) {
				var call func(m []byte) ([]byte, error)
				if tt.rdma {
					call = h.RDMAClient(lp, fabric.Loop(l), p.Addr("nfs"), 0).Call
				} else {
					call = h.Client(p.Addr("nfs")).Call
				}
				wg.Go(func() {
					for j := range uint32(calls) {
						if _, err := call(proxytest.EchoCall(i<<16+j+1, 500, 500, 0)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			// 160 Calls at 200 a second, a quarter of a second's worth at once.
			if d := time.Since(began); d < 500*time.Millisecond {
				t.Errorf("%d Calls took %v", clients*calls, d)
			}
		})
	}
}
