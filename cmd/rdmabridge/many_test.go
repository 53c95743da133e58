package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A throng is a bridge from RDMA to a TCP server with many clients, over iWARP on loopback
// sockets.
type throng struct {
	*proxytest.Harness
	p        *proxy.Proxy
	server   *proxytest.TCPServer
	provider fabric.Provider
	loops    []*tcpframe.Loop
}

func newCrowd(t testing.TB, budget int64, credits int, b proxytest.Behaviour) *throng {
	t.Helper()
	h := proxytest.NewHarness(t, budget)
	x := &throng{Harness: h, server: h.TCPServer(b), provider: proxytest.IWARP(iwarp.Options{Log: h.Log})}
	engine, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: h.Log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Stop)
	x.loops = engine.Loops()
	x.p = h.Proxy(
		[]settings.ListenerOptions{{
			Name: "rdma", Address: "127.0.0.1:0", RDMA: true, Provider: proxytest.IWARP(iwarp.Options{Log: h.Log}), Upstream: "storage",
			Credits: credits, MaxStartingPerAddress: 128,
		}},
		[]settings.UpstreamOptions{{Name: "storage", Endpoints: []string{x.server.Addr()}, Connections: 2, ProbeInterval: -1}}, // the server counts Calls
	)
	return x
}

// join connects n clients, 16 at a time.
func (x *throng) join(n, credits int) []*proxytest.RDMAClient {
	x.T.Helper()
	clients := make([]*proxytest.RDMAClient, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				c, err := x.DialRDMA(x.provider, x.loops[i%2], x.p.Addr("rdma"),
					rdmaside.RequesterOptions{Credits: credits, IdleReceives: 4, ReceiveSize: 4096, ReverseReceives: -1})
				if err != nil {
					x.T.Errorf("client %d: %v", i, err)
					return
				}
				x.T.Cleanup(func() { _ = c.Close() })
				clients[i] = c
			}
		})
	}
	wg.Wait()
	if x.T.Failed() {
		x.T.FailNow()
	}
	return clients
}

// value returns the sum of the series whose names begin with name.
func (x *throng) value(name string) (n int) {
	w := httptest.NewRecorder()
	x.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "rdmabridge_"+name) {
			v, _ := strconv.ParseFloat(f[1], 64)
			n += int(v)
		}
	}
	return n
}

// report logs how much memory is in use. The bridge, its clients and the server are one
// process.
func (x *throng) report(when string) {
	st := x.Arena.Stats()
	rss := "?"
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				rss = strings.TrimSpace(v)
			}
		}
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	x.T.Logf("%s: %d clients, %d credits granted, %d Receives, %d starved; arena %.1f MiB used, %.1f resident, of %d; heap %.1f MiB; process %s",
		when, x.p.Status(status.Query{}).Listeners[0].Clients, x.value("listener_credits_granted"), x.value("listener_rdma_receives"), x.value("listener_credits_starved_connections"),
		mib(st.Used), mib(st.Resident), st.Budget>>20, mib(int64(ms.HeapAlloc)), rss)
	for _, a := range st.Accounts {
		x.T.Logf("  %-8s %5.1f MiB used, %5.1f at most, of %5.1f; refused %d times, %d wait", a.Name, mib(a.Used), mib(a.Peak), mib(a.Limit), a.Refused, a.Waiting)
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// watch checks that memory stays within the budget until the function that it returns is
// called.
func (x *throng) watch() (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(2 * time.Millisecond): // until the next look at the memory
			}
			if st := x.Arena.Stats(); st.Used > st.Budget || st.Resident > st.Budget {
				x.T.Errorf("%d octets used, %d resident, of %d", st.Used, st.Resident, st.Budget)
				return
			}
		}
	})
	return func() { close(end); wg.Wait() }
}

// work has a client send calls Calls, deep of them at a time, and checks the Replies. The
// Calls are a mix as a file system makes it, with some bulk.
func work(c *proxytest.RDMAClient, seed uint64, calls, deep int) error {
	r := rand.New(rand.NewPCG(seed, 1))
	type sent struct {
		m  []byte
		ch <-chan []byte
	}
	var window []sent
	for j := range calls + deep {
		if len(window) == deep || j >= calls && len(window) > 0 {
			s := window[0]
			window = window[1:]
			select {
			case got, ok := <-s.ch:
				if !ok {
					return fmt.Errorf("call %d: the connection ended", j-deep)
				}
				if !bytes.Equal(got, proxytest.Expected(s.m)) {
					return fmt.Errorf("call %d: wrong octets", j-deep)
				}
			case <-time.After(testkit.Patience):
				return fmt.Errorf("call %d: not answered", j-deep)
			}
		}
		if j >= calls {
			continue
		}
		xid := uint32(seed)<<12 | uint32(j) + 1
		var m []byte
		switch n := r.IntN(20); {
		case n < 2:
			m = proxytest.WriteCall(xid, uint64(j), 64<<10)
		case n < 3:
			m = proxytest.ReadCall(xid, uint64(j), 64<<10)
		case n < 8:
			m = proxytest.ReadCall(xid, uint64(j), uint32(r.IntN(8000)))
		case n < 9:
			m = proxytest.MkdirCall(xid, "directory")
		default:
			m = proxytest.GetattrCall(xid)
		}
		ch, err := c.Go(m)
		if err != nil {
			return err
		}
		window = append(window, sent{m, ch})
	}
	return nil
}

// TestThousandConnections: 256 MiB suffice for 1,000 RDMA connections, first idle and then
// all active.
func TestThousandConnections(t *testing.T) {
	clients, calls := 1000, 40
	if testing.Short() || testkit.RaceEnabled {
		clients, calls = 200, 20
	}
	x := newCrowd(t, 256<<20, 64, proxytest.Behaviour{})
	stop := x.watch()
	defer stop()
	all := x.join(clients, 64)
	x.Eventually("all are connected", func() bool { return x.p.Status(status.Query{}).Listeners[0].Clients == clients })
	x.report("idle")
	// A client that works beside the idle ones gets the memory that it needs.
	if err := work(all[0], 0, 200, 32); err != nil {
		t.Errorf("one active: %v", err)
	}
	x.report("one active")
	began := time.Now()
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			if err := work(c, uint64(i)+1, calls, 8); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	x.Eventually("half of the Calls are at the server", func() bool { return x.server.Calls.Load() >= int64(clients*calls/2+200) })
	x.report("half done")
	wg.Wait()
	d := time.Since(began)
	x.report("after " + d.Round(time.Millisecond).String())
	t.Logf("%.0f Calls per second", float64(clients*calls)/d.Seconds())
	if n := x.value("listener_refused_connections_total"); n != 0 {
		t.Errorf("%d connections were refused or ended", n)
	}
	if n := x.server.Calls.Load(); n != int64(clients*calls+200) {
		t.Errorf("%d Calls at the server, want %d", n, clients*calls+200)
	}
}

// TestFloodingConnection: beside a client that uses all the credits that it can get, 100
// small clients have credits of their own and get their Replies.
func TestFloodingConnection(t *testing.T) {
	t.Parallel()
	clients := 100
	if testkit.RaceEnabled {
		clients = 30
	}
	x := newCrowd(t, 32<<20, 1024, proxytest.Behaviour{Delay: 2 * time.Millisecond})
	stop := x.watch()
	defer stop()
	var flooded atomic.Int64
	endFlood := x.flood(&flooded)
	x.Eventually("the flooder has 256 credits", func() bool { return x.value("listener_credits_granted") >= 256 })
	x.report("flooded")
	const calls, deep = 60, 4
	small := x.join(clients, 64)
	began := time.Now()
	var wg sync.WaitGroup
	for i, c := range small {
		wg.Go(func() {
			if err := work(c, uint64(i)+1, calls, deep); err != nil {
				t.Errorf("small client %d: %v", i, err)
			}
		})
	}
	before := flooded.Load()
	wg.Wait()
	d := time.Since(began)
	x.report("small ones after " + d.Round(time.Millisecond).String())
	t.Logf("%d Calls of %d small clients and %d of the flooder", clients*calls, clients, flooded.Load()-before)
	if flooded.Load() == before {
		t.Error("the flooder got no Reply: this test tests nothing")
	}
	if n := x.value("listener_credits_granted"); n < clients*(deep-1) {
		t.Errorf("%d credits are granted, want about %d for the small ones alone", n, clients*deep)
	}
	endFlood()
}

// flood has one client use all the credits that it can get until the function that it
// returns is called. It counts the Replies in answered.
func (x *throng) flood(answered *atomic.Int64) (stop func()) {
	x.T.Helper()
	flooder := x.join(1, 1024)[0]
	end := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		window := make(chan (<-chan []byte), 1000)
		flood.Go(func() {
			for ch := range window {
				if _, ok := <-ch; !ok {
					x.T.Error("the connection of the flooder ended")
				}
				answered.Add(1)
			}
		})
		defer close(window)
		for xid := uint32(1 << 30); ; xid++ {
			select {
			case <-end:
				return
			default:
			}
			ch, err := flooder.Go(proxytest.GetattrCall(xid))
			if err != nil {
				x.T.Errorf("flooder: %v", err)
				return
			}
			window <- ch
		}
	})
	return func() {
		close(end)
		flood.Wait()
	}
}
