package proxy_test

import (
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
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
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

// windows is how often shares are looked at before they count as wrong: where the
// machine does not let a client have Calls waiting all the time, its share is less.
const windows = 4

// One client with 64 WRITEs of 1 MiB outstanding and 31 with small ones: octets are
// shared evenly while all of them wait for the server.
func TestHog(t *testing.T) {
	h := proxytest.NewHarness(t, 512<<20)
	p, _ := forward(t, h, 8, proxytest.Behaviour{Delay: time.Millisecond}, func(_ *settings.ListenerOptions, u *settings.UpstreamOptions) {
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
	// Shares are differences from a moment at which all of them wait.
	until := func(n int64) (shares []float64) {
		h.Eventually("the hog has had its share", func() bool { return had[0].Load() >= n })
		for i := range had {
			shares = append(shares, float64(had[i].Load()))
		}
		return shares
	}
	var best float64
	first := until(2 << 20)
	for w := int64(1); w <= windows && best < 0.95; w++ {
		last := until((2 + 4*w) << 20)
		var sum, squares float64
		for i := range last {
			x := last[i] - first[i]
			sum, squares = sum+x, squares+x*x
		}
		j := sum * sum / (squares * float64(len(last)))
		t.Logf("Jain's index is %.3f: %.0f to %.0f", j, first, last)
		best, first = max(best, j), last
	}
	close(stop)
	wg.Wait()
	if best < 0.95 {
		t.Errorf("Jain's index is %.3f at best, want 0.95", best)
	}
}

// Shares and rates that change by Reconfigure hold for clients that are connected, on
// both transports, those included that are waiting.
func TestReconfigureRates(t *testing.T) {
	t.Parallel()
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprintf("rdma %t", rdma), func(t *testing.T) {
			t.Parallel()
			reconfigureRates(t, rdma)
		})
	}
}

func reconfigureRates(t *testing.T, rdma bool) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", RDMA: rdma, Provider: lp, Upstream: "tcp"}
	us := []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}}
	p := h.Proxy([]settings.ListenerOptions{lo}, us)
	var call func(m []byte) ([]byte, error)
	if rdma {
		call = h.RDMAClient(lp, loop.Loop(l), p.Addr("nfs"), 0).Call
	} else {
		call = h.Client(p.Addr("nfs")).Call
	}
	xid := uint32(0)
	took := func(calls int) time.Duration {
		began := time.Now()
		for range calls {
			xid++
			if _, err := call(proxytest.GetattrCall(xid)); err != nil {
				t.Fatal(err)
			}
		}
		return time.Since(began)
	}
	set := func(all, client int) {
		lo.Rate.Calls, lo.ClientRate.Calls = all, client
		if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(us...)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ all, client int }{{0, 100}, {100, 0}, {10000, 100}, {100, 10000}} {
		set(tt.all, tt.client)
		// A quarter of a second's worth at once.
		if d := took(75); d < 400*time.Millisecond {
			t.Errorf("75 Calls at %+v took %v", tt, d)
		}
		set(0, 0)
		waits := metric(h, "listener_rate_limit_waits_total")
		took(75)
		if n := metric(h, "listener_rate_limit_waits_total") - waits; n != 0 {
			t.Errorf("%d of 75 Calls waited without a rate", n)
		}
	}
	// One that would wait for minutes.
	waits := metric(h, "listener_rate_limit_waits_total")
	set(0, 1)
	done := make(chan struct{})
	go func() {
		took(200)
		close(done)
	}()
	h.Eventually("the client waits", func() bool { return metric(h, "listener_rate_limit_waits_total") > waits })
	set(0, 1000)
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Error("a client that waited does not go on by the new rate")
	}
}

// Two clients that are connected have shares of one to one, and then others.
func TestReconfigureWeights(t *testing.T) {
	h := proxytest.NewHarness(t, 512<<20)
	var lo settings.ListenerOptions
	var uo settings.UpstreamOptions
	p, _ := forward(t, h, 4, proxytest.Behaviour{Delay: time.Millisecond}, func(l *settings.ListenerOptions, u *settings.UpstreamOptions) {
		u.Connections = 1
		lo, uo = *l, *u
	})
	had := make([]atomic.Int64, 2)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range had {
		c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 7, byte(1+i)), p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		wg.Go(func() { keepBusy(t, c, uint32(i)<<20, 32, 16<<10, stop, &had[i]) })
	}
	waits := func() bool { return p.Status(status.Query{}).Upstreams[0].Credits.Waiting > 32 }
	ratio := func() (r float64) {
		h.Eventually("both wait, before and after", func() bool {
			h.Eventually("both wait", waits)
			was := []int64{had[0].Load(), had[1].Load()}
			h.Eventually("much was written", func() bool { return had[0].Load()+had[1].Load() >= was[0]+was[1]+8<<20 })
			r = float64(had[1].Load()-was[1]) / float64(had[0].Load()-was[0])
			return waits()
		})
		return r
	}
	for _, w := range []int{1, 8, 2, 1} {
		lo.Weights = []admit.Weight{{Clients: []netip.Prefix{netip.MustParsePrefix("127.0.7.2/32")}, Weight: w}}
		if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(uo)); err != nil {
			t.Fatal(err)
		}
		ratio() // Calls that are out already were drawn by the old weights
		r := ratio()
		for range windows - 1 {
			if r >= 0.8*float64(w) && r <= 1.25*float64(w) {
				break
			}
			r = ratio()
		}
		if r < 0.8*float64(w) || r > 1.25*float64(w) {
			t.Errorf("with weights of 1 and %d the shares are as 1 to %.2f", w, r)
		}
	}
	close(stop)
	wg.Wait()
}

// Connections come and go while rates change: -race looks on.
func TestReconfigureRatesUnderConnections(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	lo := settings.ListenerOptions{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}
	us := []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}}
	p := h.Proxy([]settings.ListenerOptions{lo}, us)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var calls atomic.Int64
	for i := range uint32(8) {
		wg.Go(func() {
			for xid := i << 24; ; {
				select {
				case <-stop:
					return
				default:
				}
				c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 7, byte(1+i%3)), p.Addr("nfs"))
				if err != nil {
					t.Error(err)
					return
				}
				for range 10 {
					xid++
					if _, err := c.Call(proxytest.GetattrCall(xid)); err != nil {
						t.Error(err)
					}
					calls.Add(1)
				}
				c.Close()
			}
		})
	}
	for i := range 200 {
		lo.Rate.Calls, lo.ClientRate.Calls = []int{0, 1, 100000}[i%3], []int{1, 0, 0, 10000}[i%4]
		lo.Weights = []admit.Weight{{Clients: []netip.Prefix{netip.MustParsePrefix("127.0.7.2/32")}, Weight: 1 + i%5}}
		if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(us...)); err != nil {
			t.Fatal(err)
		}
		if lo.Rate.Calls != 1 && lo.ClientRate.Calls != 1 {
			n := calls.Load()
			h.Eventually("Calls go on", func() bool { return calls.Load() > n+20 })
		}
	}
	lo.Rate, lo.ClientRate = gates.Rate{}, gates.Rate{}
	if err := p.Reconfigure(proxytest.Listeners(lo), proxytest.Upstreams(us...)); err != nil {
		t.Fatal(err)
	}
	n := calls.Load()
	h.Eventually("everybody goes on", func() bool { return calls.Load() > n+200 })
	close(stop)
	wg.Wait()
}

// However many Calls clients have, few are read in while the upstream does not
// answer, and all are answered when it does. On both transports a client that was
// made to wait goes on.
func TestSlowStartOfAStalledUpstream(t *testing.T) {
	t.Parallel()
	for _, message := range []func(xid uint32) []byte{proxytest.GetattrCall, proxytest.SequenceCall} {
		slowStartOfAStalledUpstream(t, message)
	}
}

func slowStartOfAStalledUpstream(t *testing.T, message func(xid uint32) []byte) {
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
		p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", RDMA: rdma, Provider: lp, Upstream: "tcp", Credits: 64}},
			[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}})
		var chs []<-chan []byte
		began := time.Now()
		for i := range uint32(clients) {
			var send func(m []byte) (<-chan []byte, error)
			if rdma {
				send = h.RDMAClient(lp, loop.Loop(l), p.Addr("nfs"), 0).Go
			} else {
				send = h.Client(p.Addr("nfs")).Go
			}
			for j := range uint32(deep) {
				ch, err := send(message(i<<8 + j + 1))
				if err != nil {
					t.Fatal(err)
				}
				chs = append(chs, ch)
			}
		}
		in := func() int { st := p.Status(status.Query{}).Upstreams[0]; return st.Credits.Used + st.Credits.Waiting }
		// An RDMA client has one credit before its first Reply: RFC 8166 Section 3.3.3.
		all := clients * deep
		if rdma {
			all = clients
		}
		h.Eventually("each client waits, or has sent all that it may", func() bool {
			return metric(h, `upstream_slow_start_waiting_clients{upstream="tcp"}`) == clients || in() >= all
		})
		// A Call that hangs for two ages of the slow start makes room for another one.
		n, out := in(), p.Status(status.Query{}).Upstreams[0].Credits.Used
		rounds := 1 + int(time.Since(began)/slowstart.Age)
		if n > rounds*(15+clients) {
			t.Errorf("rdma %v: %d Calls were let in of %d, want 16 and one of each client at most, %d times", rdma, n, clients*deep, rounds)
		}
		if out > rounds*16 {
			t.Errorf("rdma %v: %d Calls were let out, want 16 at most, %d times", rdma, out, rounds)
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

// While the upstream is in its slow start, connections that send nothing hold no place there,
// and the bridge notices those that are closed: a thousand of them cost nobody anything.
func TestSlowStartOfSilentClients(t *testing.T) {
	h := proxytest.NewHarness(t, budget)
	s := h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "tcp"}},
		[]settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}})
	const silent, closed = 100, 400
	for i := range silent + closed {
		c, err := net.Dial("tcp", p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		if i < closed {
			c.Close()
			continue
		}
		defer c.Close()
	}
	h.Eventually("those that closed are gone", func() bool { return metric(h, `listener_clients{listener="nfs"}`) == silent })
	if n := metric(h, `upstream_slow_start_waits_total{upstream="tcp"}`); n != 0 {
		t.Errorf("%d clients that sent nothing had to wait", n)
	}
	if _, err := h.Client(p.Addr("nfs")).Call(proxytest.GetattrCall(1)); err != nil {
		t.Errorf("a newcomer: %v", err)
	}
}

// Rates make clients wait, of one address together, and drop nothing.
func TestRates(t *testing.T) {
	const clients, calls = 4, 40
	echo := func(xid uint32) []byte { return proxytest.EchoCall(xid, 500, 500, 0) }
	for _, tt := range []struct {
		name    string
		rdma    bool
		message func(xid uint32) []byte
		set     func(*settings.ListenerOptions)
	}{
		{"listener", false, echo, func(o *settings.ListenerOptions) { o.Rate.Calls = 200 }},
		{"client", false, echo, func(o *settings.ListenerOptions) { o.ClientRate.Calls = 200 }},
		{"octets", false, echo, func(o *settings.ListenerOptions) { o.ClientRate.Octets = 200 * 1000 }},
		{"rdma", true, echo, func(o *settings.ListenerOptions) { o.ClientRate.Calls = 200 }},
		{"listener, NFSv4.1", false, proxytest.SequenceCall, func(o *settings.ListenerOptions) { o.Rate.Calls = 200 }},
		{"client, NFSv4.1", false, proxytest.SequenceCall, func(o *settings.ListenerOptions) { o.ClientRate.Calls = 200 }},
		{"rdma, NFSv4.1", true, proxytest.SequenceCall, func(o *settings.ListenerOptions) { o.ClientRate.Calls = 200 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := proxytest.NewHarness(t, budget)
			s := h.TCPServer(proxytest.Behaviour{})
			lp, l := fabrictest.NewLoopback(), fabrictest.NewLoop()
			t.Cleanup(l.Stop)
			lo := settings.ListenerOptions{
				Name: "nfs", Address: "127.0.0.1:0", RDMA: tt.rdma, Provider: lp, Upstream: "tcp",
				Weights: []admit.Weight{{Clients: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Weight: 3}},
			}
			tt.set(&lo)
			p := h.Proxy([]settings.ListenerOptions{lo}, []settings.UpstreamOptions{{Name: "tcp", Endpoints: []string{s.Addr()}, Connections: 2}})
			began := time.Now()
			var wg sync.WaitGroup
			for i := range uint32(clients) {
				var call func(m []byte) ([]byte, error)
				if tt.rdma {
					call = h.RDMAClient(lp, loop.Loop(l), p.Addr("nfs"), 0).Call
				} else {
					call = h.Client(p.Addr("nfs")).Call
				}
				wg.Go(func() {
					for j := range uint32(calls) {
						if _, err := call(tt.message(i<<16 + j + 1)); err != nil {
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
