package reach

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/dials"
)

// TestEndpointFor: clients are spread evenly, keep their place, and keep it when another
// endpoint is added unless they move to that one.
func TestEndpointFor(t *testing.T) {
	const clients, n = 4096, 4
	var counts [n]int
	moved := 0
	for i := range clients {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		at := EndpointFor(a, n)
		counts[at]++
		if mapped := EndpointFor(netip.AddrFrom16(a.As16()), n); mapped != at {
			t.Fatalf("%v is at %d, and at %d in the words of IPv6", a, at, mapped)
		}
		if next := EndpointFor(a, n+1); next != at {
			moved++
			if next != n {
				t.Fatalf("%v moved from %d to %d, neither of which is new", a, at, next)
			}
		}
	}
	for i, c := range counts {
		if c < clients/n*9/10 || c > clients/n*11/10 {
			t.Errorf("%d clients at endpoint %d, want about %d", c, i, clients/n)
		}
	}
	if want := clients / (n + 1); moved < want*9/10 || moved > want*11/10 {
		t.Errorf("%d clients moved to the new endpoint, want about %d", moved, want)
	}
	// The values of the first release: a client must find its state after an upgrade.
	if at := EndpointFor(netip.MustParseAddr("10.1.2.3"), 3); at != placeOfThree {
		t.Errorf("10.1.2.3 is at %d of 3, was at %d", at, placeOfThree)
	}
}

const placeOfThree = 1

// TestEndpointsOfClients: where each client belongs to one endpoint, a pool dials that one alone, and no operator takes
// it away. Otherwise every pool dials all, and an operator may take all but one.
func TestEndpointsOfClients(t *testing.T) {
	all := []string{"192.0.2.1:2049", "192.0.2.2:2049"}
	log := zerolog.Nop()
	for _, apart := range []bool{false, true} {
		renewed := 0
		e := NewEndpoints(EndpointsOptions{
			Upstream: "storage", Endpoints: all, Apart: apart, Dials: dials.New(1, 1).Share(), Metrics: metrics.New(),
			Lines: NewLines(&log, new(atomic.Bool)), Renew: func() { renewed++ },
		})
		var states []status.EndpointState
		look := func() []status.EndpointState {
			states = states[:0]
			for _, s := range e.Status() {
				states = append(states, s.State)
			}
			return states
		}
		if used := []status.EndpointState{status.EndpointUsed, status.EndpointUsed}; !slices.Equal(look(), used) {
			t.Errorf("apart %t: %v at first", apart, states)
		}
		po := pool.Options{Endpoints: all}
		if apart {
			e.One(&po, 1)
			if !slices.Equal(po.Endpoints, all[1:]) || po.Health == nil || po.Dials == nil {
				t.Errorf("a pool of the second endpoint's clients dials %v", po.Endpoints)
			}
			if err := e.Eject(all[0], 0); err == nil || renewed > 0 {
				t.Errorf("an endpoint with clients of its own is ejected: %v", err)
			}
			continue
		}
		e.All(&po)
		if !slices.Equal(po.Endpoints, all) || po.Health == nil || po.Dials == nil {
			t.Errorf("a pool dials %v", po.Endpoints)
		}
		if err := e.Eject(all[0], time.Hour); err != nil || renewed != 1 {
			t.Errorf("Eject: %v, and connections are renewed %d times", err, renewed)
		}
		if ejected := []status.EndpointState{status.EndpointEjected, status.EndpointUsed}; !slices.Equal(look(), ejected) {
			t.Errorf("%v while the first is ejected", states)
		}
		if err := e.Eject(all[1], 0); err == nil {
			t.Error("the last endpoint is ejected")
		}
		if err := e.Return(all[0]); err != nil {
			t.Error(err)
		}
		if err := e.Return(all[0]); err == nil {
			t.Error("an endpoint that is not ejected returns")
		}
	}
}
