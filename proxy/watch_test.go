package proxy_test

import (
	"bytes"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// A watched is a proxy whose upstream is behind a relay.
type watched struct {
	*proxytest.Harness
	transport string
	p         *proxy.Proxy
	relay     *proxytest.Relay
	xids      func() map[uint32]int
	calls     *atomic.Int64

	silent proxytest.Gate // shut while the server answers nothing
	drop   atomic.Bool    // it will not answer the next GETATTR
	victim atomic.Uint32  // that one's XID
}

func (x *watched) intercept(c *oncrpc.Call) ([]byte, bool) {
	if c.Program == oncrpc.ProgramNFS && c.Procedure == 1 && x.drop.CompareAndSwap(true, false) {
		x.victim.Store(c.XID)
		return nil, true
	}
	return nil, false
}

// eachTransport runs f with an upstream on TCP and one on iWARP, which answer after
// delay.
func eachTransport(t *testing.T, delay time.Duration, change func(*settings.UpstreamOptions), f func(t *testing.T, x *watched)) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for _, rdma := range []bool{false, true} {
		name := "tcp"
		if rdma {
			name = "iwarp"
		}
		atOnce(t, &all, name, func(t *testing.T) {
			x := &watched{transport: name, Harness: proxytest.NewHarness(t, budget)}
			b := proxytest.Behaviour{Delay: delay, Intercept: x.intercept, Gate: &x.silent}
			uo := settings.UpstreamOptions{Name: "storage", RDMA: rdma, Connections: 1, BackoffMin: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond}
			var addr string
			if rdma {
				l := iwarptest.NewLoop()
				t.Cleanup(l.Stop)
				s := x.RDMAServer(proxytest.IWARP(iwarp.Options{}), []loop.Loop{l}, "127.0.0.1:0", 32, b)
				addr, x.xids, x.calls = s.Addr(), s.XIDs, &s.Calls
			} else {
				s := x.TCPServer(b)
				addr, x.xids, x.calls = s.Addr(), s.XIDs, &s.Calls
			}
			x.relay = proxytest.NewRelay(t, addr)
			uo.Endpoints = []string{x.relay.Addr()}
			if change != nil {
				change(&uo)
			}
			if rdma {
				uo.Provider = proxytest.IWARP(iwarp.Options{SilentTimeout: max(uo.SilentTimeout, 0)})
			}
			x.p = x.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{uo})
			f(t, x)
		})
	}
}

func (x *watched) client() *proxytest.Client { return x.Client(x.p.Addr("nfs")) }

// burst sends n READs of c at once, and checks what is answered.
func burst(t *testing.T, wg *sync.WaitGroup, c *proxytest.Client, xid uint32, n int) {
	t.Helper()
	for i := range n {
		m := proxytest.ReadCall(xid+uint32(i), 0, 4000)
		ch, err := c.Go(m)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
				t.Errorf("call %d: wrong reply or none", xid+uint32(i))
			}
		})
	}
}

func (x *watched) ends(reason string) int {
	return metric(x.Harness, `upstream_disconnects_total{reason="`+reason+`",upstream="storage"}`)
}

// TestVanishedHost: the server's host vanishes under an idle connection, under Calls
// that it has, and before it has them. It is found out in less than 5 s, unless the
// machine is busy each time, and the clients notice nothing else.
func TestVanishedHost(t *testing.T) {
	testkit.NeedsFilter(t)
	t.Parallel()
	change := func(o *settings.UpstreamOptions) { o.SilentTimeout = 4 * time.Second }
	var mu sync.Mutex // guards soonest
	soonest := map[string]time.Duration{"tcp": time.Hour, "iwarp": time.Hour}
	vanish := func(t *testing.T, x *watched, f func()) {
		t.Helper()
		began := time.Now()
		x.relay.Vanish(false)
		gone := time.Now()
		f()
		x.Eventually("the connection has ended", func() bool { return x.ends("silent") == 1 })
		if d := time.Since(began); d < 2*time.Second {
			t.Errorf("found out after %v, want 2 s at least", d)
		}
		mu.Lock()
		soonest[x.transport] = min(soonest[x.transport], time.Since(gone))
		mu.Unlock()
		x.relay.Forget()
	}
	var all sync.WaitGroup
	for name, f := range map[string]func(t *testing.T, x *watched, c *proxytest.Client){
		"idle": func(t *testing.T, x *watched, c *proxytest.Client) {
			vanish(t, x, func() {})
			check(t, c, proxytest.GetattrCall(2))
		},
		"waiting for Replies": func(t *testing.T, x *watched, c *proxytest.Client) {
			var wg sync.WaitGroup
			burst(t, &wg, c, 10, 8)
			x.Eventually("the Calls are there", func() bool { return x.calls.Load() == 9 })
			vanish(t, x, func() {})
			wg.Wait()
		},
		"sending Calls": func(t *testing.T, x *watched, c *proxytest.Client) {
			var wg sync.WaitGroup
			vanish(t, x, func() { burst(t, &wg, c, 20, 8) })
			wg.Wait()
		},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			eachTransport(t, 700*time.Millisecond, change, func(t *testing.T, x *watched) {
				c := x.client()
				check(t, c, proxytest.GetattrCall(1))
				f(t, x, c)
				if n := x.relay.Accepted(); n != 2 {
					t.Errorf("%d connections, want 2", n)
				}
			})
		})
	}
	all.Wait()
	for transport, d := range soonest {
		if d >= 5*time.Second {
			t.Errorf("%s: found out after %v at the soonest", transport, d)
		}
	}
}

// TestStalledServer: a server that is there and answers nothing keeps its connection
// and its Calls until their deadline, and this shows. It has to take another connection
// no more often than that.
func TestStalledServer(t *testing.T) {
	t.Parallel()
	change := func(o *settings.UpstreamOptions) {
		o.SilentTimeout, o.ProbeInterval, o.CallTimeout = 4*time.Second, 200*time.Millisecond, 6*time.Second
	}
	eachTransport(t, 0, change, func(t *testing.T, x *watched) {
		c := x.client()
		check(t, c, proxytest.GetattrCall(1))
		stalled := func() int { return metric(x.Harness, `upstream_stalled_connections{upstream="storage"}`) }
		x.Eventually("an idle connection is asked, and answers", func() bool {
			return metric(x.Harness, `upstream_probes_total{result="answered",upstream="storage"}`) >= 2
		})
		x.Eventually("a server that answers does not count as stalled", func() bool { return stalled() == 0 })
		x.silent.Shut()
		defer x.silent.Open()
		m := proxytest.GetattrCall(2)
		ch, err := c.Go(m)
		if err != nil {
			t.Fatal(err)
		}
		x.Eventually("the connection counts as stalled", func() bool { return stalled() == 1 })
		x.Eventually("the connection is replaced", func() bool { return x.relay.Accepted() >= 2 })
		x.Eventually("because of the deadline", func() bool { return x.ends("deadline") == 1 })
		sent := func() int { return slices.Max(slices.Collect(maps.Values(x.xids()))) }
		x.Eventually("the Call that waited was sent again", func() bool { return sent() >= 2 })
		x.Eventually("the next connection counts as stalled", func() bool { return stalled() == 1 })
		if n := x.relay.Accepted(); n != 2 {
			t.Errorf("%d connections since the deadline, want 2", n)
		}
		if n := sent(); n != 2 {
			t.Errorf("the Call that waited was sent %d times, want 2", n)
		}
		x.silent.Open()
		if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Error("the Call that waited has a wrong reply or none")
		}
		x.Eventually("it is stalled no more", func() bool { return stalled() == 0 })
		if x.ends("silent") != 0 {
			t.Error("a server that is stopped was taken for a host that is gone")
		}
	})
}

// TestDroppedCalls: a server drops a Call without a word. Its credit comes back by way
// of another connection, and the others' Calls know nothing of it: none is sent twice.
func TestDroppedCalls(t *testing.T) {
	t.Parallel()
	change := func(o *settings.UpstreamOptions) { o.CallTimeout, o.ProbeInterval = 6*time.Second, -1 }
	eachTransport(t, time.Second, change, func(t *testing.T, x *watched) {
		c, other := x.client(), x.client()
		check(t, c, proxytest.GetattrCall(1)) // until then there is one credit
		x.drop.Store(true)
		m := proxytest.GetattrCall(2)
		ch, err := c.Go(m)
		if err != nil {
			t.Fatal(err)
		}
		x.Eventually("it is dropped", func() bool { return !x.drop.Load() })
		// Some of these are out when the deadline comes.
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i := range uint32(5) {
			wg.Go(func() {
				for xid := 100 + i<<10; ; xid++ {
					check(t, other, proxytest.ReadCall(xid, 0, 4000))
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Error("the Call that was dropped has a wrong reply or none")
		}
		close(stop)
		wg.Wait()
		for xid, n := range x.xids() {
			want := 1
			if xid == x.victim.Load() {
				want = 2
			}
			if n != want {
				t.Errorf("XID %#x was sent %d times, want %d", xid, n, want)
			}
		}
		if n := x.relay.Accepted(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
		if n := metric(x.Harness, `upstream_leaked_credits_total{upstream="storage"}`); n != 1 {
			t.Errorf("%d leaked credits, want 1", n)
		}
		x.Eventually("the old connection has ended", func() bool { return x.ends("dropped") == 1 })
	})
}

// TestProbeDeadline: without a transport that knows, a probe that is not answered is
// a Call that has its deadline.
func TestProbeDeadline(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var drop atomic.Bool // the next probe
	p := fabrictest.NewLoopback()
	l := fabrictest.NewLoop()
	t.Cleanup(l.Stop)
	b := proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) { return nil, drop.CompareAndSwap(true, false) }}
	s := h.RDMAServer(p, []loop.Loop{l}, "storage", 4, b)
	px := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{
			Name: "storage", RDMA: true, Provider: p, Endpoints: []string{"storage"}, Connections: 1,
			ProbeInterval: 50 * time.Millisecond, CallTimeout: time.Second, BackoffMin: 5 * time.Millisecond,
		}})
	check(t, h.Client(px.Addr("nfs")), proxytest.GetattrCall(1))
	drop.Store(true)
	deadlines := func() int { return metric(h, `upstream_disconnects_total{reason="deadline",upstream="storage"}`) }
	h.Eventually("the connection is replaced though no Call needs it", func() bool { return deadlines() == 1 })
	h.Eventually("the next one is well", func() bool { return s.Connections() == 1 && px.Ready() == nil })
	if n := metric(h, `upstream_probes_total{result="failed",upstream="storage"}`); n != 1 {
		t.Errorf("%d probes failed, want 1", n)
	}
}

// TestStalledWithoutCredit: a server that has stopped while every credit is in use counts
// as stalled.
func TestStalledWithoutCredit(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var stopped atomic.Bool
	s := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) { return nil, stopped.Load() }})
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Credits: 2, ProbeInterval: 100 * time.Millisecond}})
	c := h.Client(p.Addr("nfs"))
	check(t, c, proxytest.GetattrCall(1))
	stopped.Store(true)
	for i := range uint32(8) {
		if _, err := c.Go(proxytest.GetattrCall(2 + i)); err != nil {
			t.Fatal(err)
		}
	}
	h.Eventually("it counts", func() bool { return metric(h, "upstream_stalled_connections") == 1 })
}

// TestStalledSwitchedOff: a pinned connection, which a reload does not replace, is not counted as stalled any more when
// the reload switches the watch off.
func TestStalledSwitchedOff(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var stopped atomic.Bool
	s := h.TCPServer(proxytest.Behaviour{Intercept: func(*oncrpc.Call) ([]byte, bool) { return nil, stopped.Load() }})
	ls := []settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}
	us := []settings.UpstreamOptions{{Name: "storage", Endpoints: []string{s.Addr()}, Mode: settings.ModePinned, ProbeInterval: 100 * time.Millisecond}}
	p := h.Proxy(ls, us)
	c := h.Client(p.Addr("nfs"))
	check(t, c, proxytest.GetattrCall(1))
	stopped.Store(true)
	if _, err := c.Go(proxytest.GetattrCall(2)); err != nil {
		t.Fatal(err)
	}
	stalled := func() int { return metric(h, "upstream_stalled_connections") }
	h.Eventually("it counts", func() bool { return stalled() > 0 })
	us[0].ProbeInterval = -1
	if err := p.Reconfigure(proxytest.Listeners(ls...), proxytest.Upstreams(us...)); err != nil {
		t.Fatal(err)
	}
	h.Eventually("none counts", func() bool { return stalled() == 0 })
}

// TestProbeIdle: a connection without Calls is probed seldom, and one with Calls as soon as the server
// is silent.
func TestProbeIdle(t *testing.T) {
	t.Parallel()
	h := proxytest.NewHarness(t, budget)
	var silent proxytest.Gate
	seldom, often := h.TCPServer(proxytest.Behaviour{Gate: &silent}), h.TCPServer(proxytest.Behaviour{})
	p := h.Proxy([]settings.ListenerOptions{
		{Name: "seldom", Address: "127.0.0.1:0", Upstream: "seldom"}, {Name: "often", Address: "127.0.0.1:0", Upstream: "often"},
	}, []settings.UpstreamOptions{
		{Name: "seldom", Endpoints: []string{seldom.Addr()}, Connections: 1, ProbeInterval: 100 * time.Millisecond, ProbeIdle: time.Hour},
		{Name: "often", Endpoints: []string{often.Addr()}, Connections: 1, ProbeInterval: 50 * time.Millisecond, ProbeIdle: 100 * time.Millisecond},
	})
	c := h.Client(p.Addr("seldom"))
	check(t, c, proxytest.GetattrCall(1))
	check(t, h.Client(p.Addr("often")), proxytest.GetattrCall(2))
	probes := func(upstream string) int {
		return metric(h, `upstream_probes_total{result="answered",upstream="`+upstream+`"}`)
	}
	was := probes("seldom") // the one that primed the connection
	h.Eventually("the other connection is probed", func() bool { return probes("often") >= 10 })
	if n := probes("seldom") - was; n != 0 {
		t.Errorf("a connection without Calls was probed %d times", n)
	}
	for i := range uint32(2) {
		silent.Shut()
		m := proxytest.GetattrCall(3 + i)
		ch, err := c.Go(m)
		if err != nil {
			t.Fatal(err)
		}
		stalled := func() int { return metric(h, `upstream_stalled_connections{upstream="seldom"}`) }
		h.Eventually("the connection counts as stalled", func() bool { return stalled() == 1 })
		silent.Open()
		if r, ok := <-ch; !ok || !bytes.Equal(r, proxytest.Expected(m)) {
			t.Error("the Call that waited has a wrong reply or none")
		}
		h.Eventually("it is stalled no more", func() bool { return stalled() == 0 })
	}
}
