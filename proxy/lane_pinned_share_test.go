package proxy_test

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// storm has a client at a local address keep calls Calls of NFSv4.2 under way on each of so many
// connections, until the test ends.
func storm(t *testing.T, local net.IP, addr string, connections, calls int) {
	t.Helper()
	for i := range connections {
		c, err := proxytest.DialClientFrom(local, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for j := range calls {
			go func() {
				for n := 0; ; n++ {
					if _, err := c.Call(proxytest.SequenceCall(uint32(i<<20 + j<<14 + n + 1))); err != nil {
						return
					}
				}
			}()
		}
	}
}

// TestPinnedShare: a host with a hundred connections of NFSv4.1 and sixteen Calls on each does not
// keep a server with few threads busy for itself. Between a neighbour's Call and its Reply the server
// answers hardly more Calls of others than pool.pinned_calls.
func TestPinnedShare(t *testing.T) {
	t.Parallel()
	for _, rdma := range []bool{false, true} {
		t.Run(fmt.Sprint("rdma ", rdma), func(t *testing.T) {
			t.Parallel()
			const limit = 32
			h := proxytest.NewHarness(t, budget)
			threads := proxytest.NewThreads(t, 8, 2*time.Millisecond)
			uo := settings.UpstreamOptions{Name: "storage", RDMA: rdma, PinnedCalls: limit, SlowStart: 1 << 10, Mode: settings.ModePinned}
			if rdma {
				uo.Provider = fabrictest.NewLoopback()
				l := fabrictest.NewLoop()
				t.Cleanup(l.Stop)
				h.RDMAServer(uo.Provider.(*fabrictest.Loopback), []loop.Loop{l}, "storage", 32, proxytest.Behaviour{Threads: threads})
				uo.Endpoints = []string{"storage"}
			} else {
				uo.Endpoints = []string{h.TCPServer(proxytest.Behaviour{Threads: threads}).Addr()}
			}
			p := h.Proxy([]settings.ListenerOptions{{Name: "nfs", Address: "127.0.0.1:0", Upstream: "storage", MaxConnections: 256}}, []settings.UpstreamOptions{uo})
			storm(t, net.IPv4(127, 0, 9, 1), p.Addr("nfs"), 100, 16)
			h.Eventually("the storm is there", func() bool {
				return p.Status(status.Query{}).Upstreams[0].Pinned == 100 && threads.Served.Load() > 4*limit
			})
			for i, message := range []func(uint32) []byte{proxytest.SequenceCall, proxytest.GetattrCall} {
				c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, byte(2+i)), p.Addr("nfs"))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				var between []int64
				for xid := range uint32(25) {
					before := threads.Served.Load()
					check(t, c, message(xid+1))
					between = append(between, threads.Served.Load()-before)
				}
				slices.Sort(between)
				if got := between[len(between)/2]; got > 3*limit {
					t.Errorf("the server answered %d Calls of others before a neighbour's (NFSv4.1 %v)", got, i == 0)
				}
			}
		})
	}
}

// TestPinnedPlaces: a host that has all places of pinned connections gives way to others until each
// has as many, and gets no place back that others need.
func TestPinnedPlaces(t *testing.T) {
	t.Parallel()
	for _, room := range []bool{false, true} {
		t.Run(fmt.Sprint("make room ", room), func(t *testing.T) {
			t.Parallel()
			const most = 6
			x := newPinning(t, budget, proxytest.Behaviour{}, func(l *settings.ListenerOptions, u *settings.UpstreamOptions) {
				u.Pinned, l.MakeRoom = most, room
			})
			from := func(host byte) (*proxytest.Client, error) {
				c, err := proxytest.DialClientFrom(net.IPv4(127, 0, 9, host), x.p.Addr("nfs"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				_, err = c.Call(proxytest.SequenceCall(1))
				return c, err
			}
			for range most {
				if _, err := from(1); err != nil {
					t.Fatal(err)
				}
			}
			got := 0
			for range 5 {
				if _, err := from(2); err == nil {
					got++
				}
			}
			if want := map[bool]int{false: 0, true: most / 2}[room]; got != want {
				t.Errorf("another host got %d of %d places, want %d", got, most, want)
			}
			if !room {
				return
			}
			if _, err := from(3); err != nil {
				t.Errorf("a third host: %v", err)
			}
			if _, err := from(1); err == nil {
				t.Error("a host got a place that others need")
			}
			x.Eventually("no more places are taken than there are", func() bool { return x.pinned() == most })
			if n := metric(x.Harness, "upstream_pinned_evicted_clients_total"); n != most/2+1 {
				t.Errorf("%d clients were closed for others, want %d", n, most/2+1)
			}
		})
	}
}
