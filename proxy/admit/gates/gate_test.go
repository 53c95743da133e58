package gates

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates/gatestest"
)

// A fakeWaiter is a client that sends whenever the bridge reads from it.
type fakeWaiter struct {
	gatestest.Conn
	client testClient
	sent   int
	send   func(*fakeWaiter)
	idle   bool
}

func (f *fakeWaiter) run() { f.Do(f.Resume) }

func (f *fakeWaiter) Resume() {
	for f.client.shut == 0 && !f.idle {
		f.sent++
		f.send(f)
	}
}

// open prepares the client, which is one of h.
func (f *fakeWaiter) open(h crowd.Host) { f.client.Waiter = MakeWaiter(f, h) }

// A testClient is what gates and rates know of a client.
type testClient struct {
	Waiter
	rates Limited
}

// follow makes r the limits of the client.
func (c *testClient) follow(r *Rates) { c.rates.Follow(r, c.Host()) }

// hostAt is the host of the address a.
func hostAt(a string) crowd.Host { return crowd.HostOf(netip.MustParseAddr(a)) }

// clientAt is a client of the address a.
func clientAt(a string) *testClient { return &testClient{Waiter: MakeWaiter(nil, hostAt(a))} }

// TestGateIsFair: hosts take turns at a gate, and the clients of a host leave in the order they came.
func TestGateIsFair(t *testing.T) {
	var g Gate
	hosts := []crowd.Host{1, 2, 3}
	number := map[*Ticket]string{}
	for i, n := range []int{6, 1, 3} {
		for j := range n {
			f := &fakeWaiter{}
			f.open(hosts[i])
			place := f.client.WaitAt(GateSlowStart, &g)
			number[place] = fmt.Sprint(i, ".", j)
			place.Since = int64(j)
		}
	}
	names := func(t *Ticket) (s []string) {
		for ; t != nil; t = t.next {
			s = append(s, number[t])
		}
		return s
	}
	if got, want := fmt.Sprint(names(g.Remove(4))), "[0.0 1.0 2.0 0.1]"; got != want {
		t.Errorf("%s leave, want %s", got, want)
	}
	if got, want := fmt.Sprint(names(g.TakeList(g.n, func(t *Ticket) bool { return t.Since < 3 }))), "[2.1 0.2 2.2]"; got != want {
		t.Errorf("%s have waited too long, want %s", got, want)
	}
	if got, want := fmt.Sprint(names(g.Remove(4))), "[0.3 0.4 0.5]"; got != want || g.n != 0 || len(g.of) != 0 || g.first != nil {
		t.Errorf("%s leave, want %s; %d are left", got, want, g.n)
	}
}

// TestGatesDoNotAllocate: a Call costs no allocation in a bucket.
func TestGatesDoNotAllocate(t *testing.T) {
	clock := gatestest.BubbleClock()
	b := NewLimit(GateClient, Rate{Calls: 10_000_000, Octets: 1 << 40}, nil, clock).join(allHosts)
	f := &fakeWaiter{}
	f.open(1)
	if n := testing.AllocsPerRun(1000, func() {
		b.chargeCall(clock(), 100, &f.client.Waiter)
		b.chargeReply(clock(), 100)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
