package proxy_test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// A stuckLoad is what the Calls that hang are sent by.
type stuckLoad struct {
	name         string
	hosts, calls int
	well         int  // Calls of each host that are answered before the first that hangs
	tenth        bool // every tenth Call hangs
}

// TestHealthySlots measures over sockets what TestHealthyBesideStuck of package pool asserts in a simulation: in how many
// half-seconds each of eight hosts with one Call at a time is answered, beside hosts whose Calls hang. It asserts no
// time, because other work on the machine takes some, too.
func TestHealthySlots(t *testing.T) {
	if os.Getenv("RDMABRIDGE_NEIGHBOURS") == "" {
		t.Skip("RDMABRIDGE_NEIGHBOURS=1 measures")
	}
	for _, load := range []stuckLoad{
		{name: "256 Calls hang after 3,000 answers", hosts: 1, calls: 256, well: 3000},
		{name: "256 Calls hang before any answer", hosts: 1, calls: 256},
		{name: "100 hosts with 4 Calls each", hosts: 100, calls: 4},
		{name: "16 Calls of one host", hosts: 1, calls: 16},
		{name: "16 Calls of 16 hosts", hosts: 16, calls: 1},
		{name: "every tenth Call of one host", hosts: 1, calls: 64, tenth: true},
	} {
		for _, timeout := range []time.Duration{2 * time.Minute, 3 * time.Second} {
			for _, way := range []string{"tcp", "rdma", "two bridges"} {
				t.Run(fmt.Sprintf("%s, timeout %v, %s", load.name, timeout, way), func(t *testing.T) { healthySlots(t, load, timeout, way) })
			}
		}
	}
}

func healthySlots(t *testing.T, load stuckLoad, timeout time.Duration, way string) {
	const run, slot, healthy = 10 * time.Second, 500 * time.Millisecond, 8
	const credits = 128 // of each of four connections: the defaults
	h := proxytest.NewHarness(t, budget)
	uo := settings.UpstreamOptions{Name: "storage", RDMA: way == "rdma", Connections: 4, Credits: credits, SlowStart: 16, CallTimeout: timeout}
	server := proxytest.Behaviour{Intercept: hangs}
	if uo.RDMA {
		uo.Provider = fabrictest.NewLoopback()
		l := fabrictest.NewLoop()
		t.Cleanup(l.Stop)
		h.RDMAServer(uo.Provider.(*fabrictest.Loopback), []loop.Loop{l}, "storage", credits, server)
		uo.Endpoints = []string{"storage"}
	} else {
		uo.Endpoints = []string{h.TCPServer(server).Addr()}
	}
	p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage"}}, []settings.UpstreamOptions{uo})
	bridges := []*proxy.Proxy{p}
	if way == "two bridges" {
		o := settings.UpstreamOptions{Name: "far", Endpoints: []string{p.Addr("nfs")}, Connections: 4, Credits: credits, SlowStart: 16, CallTimeout: timeout}
		p = proxytest.NewHarness(t, budget).Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "far"}}, []settings.UpstreamOptions{o})
		bridges = append(bridges, p)
	}
	var over atomic.Bool
	var all sync.WaitGroup
	defer func() {
		over.Store(true)
		all.Wait()
		if timeout < run { // Calls whose clients are gone have memory until their connections end
			testkit.Eventually(t, "no Call has memory", func() bool { return !slices.ContainsFunc(bridges, holdsCalls) })
		}
	}()
	for i := range load.hosts {
		all.Go(func() { sendStuck(t, p.Addr("nfs"), i, load, &over) })
	}
	time.Sleep(time.Second) // what hangs is there first
	answered := make([]map[int]bool, healthy)
	var good sync.WaitGroup
	start := time.Now()
	for i := range healthy {
		answered[i] = map[int]bool{}
		c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 7, byte(1+i)), p.Addr("nfs"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		good.Go(func() {
			for n := uint32(0); time.Since(start) < run; n++ {
				done, err := c.Go(proxytest.GetattrCall(uint32(i+1)<<20 + n))
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				select {
				case <-done:
					answered[i][int(time.Since(start)/slot)] = true
				case <-time.After(time.Until(start.Add(run))):
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	good.Wait()
	slots, with := int(run/slot), 0
	for _, of := range answered {
		for i := range slots {
			if of[i] {
				with++
			}
		}
	}
	var line []byte
	for i := range slots {
		n := 0
		for _, of := range answered {
			if of[i] {
				n++
			}
		}
		line = append(line, byte('0'+n))
	}
	t.Logf("hosts answered in each half-second: %s", line)
	t.Logf("answered in %.1f %% of the half-seconds", 100*float64(with)/float64(slots*healthy))
}

// holdsCalls reports whether a Call has memory in p.
func holdsCalls(p *proxy.Proxy) bool {
	return slices.ContainsFunc(p.Status(status.Query{}).Memory.Accounts, func(a status.Account) bool { return a.Name == "calls" && a.Used > 0 })
}

// sendStuck sends the Calls of host i until it is over. It connects again when the bridge has closed its connection.
func sendStuck(t *testing.T, addr string, i int, load stuckLoad, over *atomic.Bool) {
	sent := 0
	for !over.Load() {
		c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, byte(1+i)), addr)
		if err != nil {
			t.Errorf("host %d: %v", i, err)
			return
		}
		var under sync.WaitGroup
		for range load.calls {
			xid := uint32(i<<20 + sent)
			under.Go(func() {
				for n := uint32(0); !over.Load(); n++ {
					m := proxytest.ReadCall(xid<<12+n, 0, 100)
					if int(n)*load.calls < load.well || load.tenth && n%10 != 9 {
						m = proxytest.GetattrCall(xid<<12 + n)
					}
					done, err := c.Go(m)
					if err != nil {
						return
					}
					for ended := false; !ended; {
						select {
						case r := <-done:
							if ended = true; r == nil {
								return // the connection has ended
							}
						case <-time.After(100 * time.Millisecond):
							ended = over.Load()
						}
					}
				}
			})
			sent++
		}
		under.Wait()
		c.Close()
	}
}
