package proxy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// sleepy makes lanes sleep soon after they have no clients, and pause for longer before they connect again.
func sleepy(_ *settings.ListenerOptions, uo *settings.UpstreamOptions, _ *nfs4test.ClientsOptions) {
	uo.Idle, uo.BackoffMin, uo.BackoffMax = time.Second, 4*time.Second, 4*time.Second
}

// another adds n clients, and waits until they have sessions.
func (x *laneWorld) another(n int, prefix string) *nfs4test.Clients {
	x.T.Helper()
	o := x.clients
	o.Prefix = prefix
	cs := nfs4test.NewClients(n, o)
	x.T.Cleanup(cs.Close)
	cs.Start()
	x.eventually("the others are up", func() bool { return cs.Up() == n && x.s.Down() == 0 })
	return cs
}

// TestLaneIsUsedAgain: a lane whose connection has ended, and whose clients have all gone to other lanes,
// gets clients again.
func TestLaneIsUsedAgain(t *testing.T) {
	t.Parallel()
	laneWorlds(t, 6, nfs4test.ServerOptions{}, sleepy, func(_ *testing.T, x *laneWorld) {
		x.allUp()
		x.eventually("each lane has a connection", func() bool {
			n, _ := x.s.Connections()
			return n == laneConnections && x.s.BackConnections() == n
		})
		lost := x.cs.Lost.Load()
		x.s.DropConnection(0)
		x.eventually("its clients have lost their connections", func() bool { return x.cs.Lost.Load() == lost+2 && x.cs.Up() == 4 })
		for i := range 6 {
			x.cs.Renew(i)
		}
		x.allUp()
		i := 0
		x.eventually("each lane has clients", func() bool {
			i++
			x.another(2, fmt.Sprint("late", i))
			return x.s.BackConnections() == laneConnections
		})
	})
}

// TestLanesPreferTheFirstEndpoint: with Priority all lanes are at the first endpoint that is well.
func TestLanesPreferTheFirstEndpoint(t *testing.T) {
	t.Parallel()
	second := nfs4test.NewServer(nfs4test.ServerOptions{})
	t.Cleanup(second.Close)
	addr, err := second.ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := newLaneWorld(t, 12, false, nfs4test.ServerOptions{}, func(_ *settings.ListenerOptions, uo *settings.UpstreamOptions, _ *nfs4test.ClientsOptions) {
		uo.Endpoints, uo.Failover, uo.Priority = append(uo.Endpoints, addr), true, true
	})
	x.allUp()
	x.work(2, nfs4test.OpGetattr, 5)
	if _, n := second.Connections(); n > 0 {
		t.Errorf("%d connections to the second endpoint, although the first is well", n)
	}
}

// TestLanePortsAreGivenBack: lanes that a reload takes away give their source ports back.
func TestLanePortsAreGivenBack(t *testing.T) {
	t.Parallel()
	const ports = 8
	low := free(t, ports)
	x := newLaneWorld(t, 6, false, nfs4test.ServerOptions{}, func(_ *settings.ListenerOptions, uo *settings.UpstreamOptions, _ *nfs4test.ClientsOptions) {
		uo.Source = reach.Source{Low: low, High: low + ports - 1}
		uo.Idle = time.Minute
	})
	x.allUp()
	all := []*nfs4test.Clients{x.cs}
	for round := range 4 {
		for _, n := range []int{1, laneConnections} {
			uo := x.upstream
			uo.Connections = n
			if err := x.p.Reconfigure(proxytest.Listeners(x.listener), proxytest.Upstreams(uo)); err != nil {
				t.Fatal(err)
			}
			if n > 1 {
				all = append(all, x.another(laneConnections, fmt.Sprint("round", round)))
			}
			x.eventually(fmt.Sprint("the clients are on lanes: ", n), func() bool {
				for _, cs := range all {
					for i := range cs.Len() {
						cs.Renew(i)
					}
				}
				return x.s.Down() == 0 && x.s.BackConnections() == n
			})
		}
	}
}
