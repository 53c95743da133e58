package proxy

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// flightTest makes calls for the tests of flights.
type flightTest struct {
	t  *testing.T
	fl *flights
	up *upstream
}

func newFlightTest(t *testing.T) *flightTest {
	return &flightTest{t, newFlights(), &upstream{}}
}

// front is a connection over RDMA from the address a.
func (ft *flightTest) front(a string) *front {
	return ft.from(netip.AddrPortFrom(netip.MustParseAddr(a), 1), true)
}

// from is a connection from peer.
func (ft *flightTest) from(peer netip.AddrPort, rdma bool) *front {
	f := &front{peer: peer, listener: &listener{isRDMA: rdma}}
	f.ledger.front = f
	return f
}

// call is a Call of someone on f.
func (ft *flightTest) call(f *front, xid uint32, args string) *call {
	s := someone()
	h := s.call(xid, args)
	c := &call{perCall: perCall{owner: owner{front: f}, up: ft.up, clientXID: xid}, h: *h}
	c.rdma.Message = h.Message
	c.setXID(xidOf(testPermutation(1), h))
	return c
}

// enter is flights.enter, with what it has to do.
func (ft *flightTest) enter(c *call, want entry) {
	ft.t.Helper()
	if got := ft.fl.enter(c); got != want {
		ft.t.Errorf("XID %d: entry %d, want %d", c.clientXID, got, want)
	}
}

func (ft *flightTest) wantEmpty() {
	ft.t.Helper()
	for i := range ft.fl.lists {
		if ft.fl.lists[i].first != nil {
			ft.t.Fatal("a Call is remembered after its end")
		}
	}
}

// TestFlights: what repeats a Call, what is another Call, and what becomes of the repeats.
func TestFlights(t *testing.T) {
	t.Parallel()
	ft := newFlightTest(t)
	a, b, far := ft.front("192.0.2.1"), ft.front("192.0.2.1"), ft.front("192.0.2.2")
	first := ft.call(a, 7, "mkdir")
	ft.enter(first, entryFlying)
	ft.enter(ft.call(a, 7, "mkdir"), entryDropped)
	second := ft.call(b, 7, "mkdir")
	ft.enter(second, entryHeld)
	ft.enter(ft.call(b, 7, "mkdir"), entryDropped)

	over := ft.from(a.peer, false) // TCP from the same port
	others := []*call{ft.call(far, 7, "mkdir"), ft.call(over, 7, "mkdir"), ft.call(b, 8, "mkdir"), ft.call(b, 7, "rmdir")}
	uid := ft.call(b, 7, "mkdir")
	uid.h.Message[oncrpc.CredentialPos+uid.h.CredentialLen-5]++ // of the gid
	other := ft.call(b, 7, "mkdir")
	other.up = &upstream{number: 1}
	for _, c := range append(others, uid, other) {
		ft.enter(c, entryFlying)
		if r := ft.fl.leave(c); r != nil {
			t.Error("a Call that nothing repeats has a repeat")
		}
	}

	// An RDMA client has a credit for each.
	rdma := ft.front("192.0.2.1")
	for range 3 {
		c := ft.call(rdma, 7, "mkdir")
		c.owner.exchange = new(rdmaside.Exchange)
		ft.enter(c, entryHeld)
		if !ft.fl.withdraw(c) {
			t.Error("the repeat of an RDMA client is not held")
		}
	}

	third := ft.call(ft.front("192.0.2.1"), 7, "mkdir")
	ft.enter(third, entryHeld)
	if next := ft.fl.replace(first); next != third || !third.flying || first.flying {
		t.Fatal("the latest repeat did not take the place of the Call that ended")
	}
	ft.enter(ft.call(a, 7, "mkdir"), entryHeld) // first has ended
	if !ft.fl.withdraw(second) || ft.fl.withdraw(second) {
		t.Error("a repeat whose client has gone can be withdrawn once")
	}
	n := 0
	for r := ft.fl.leave(third); r != nil; r = r.flight.next {
		n++
		if ft.fl.withdraw(r) {
			t.Error("a repeat is withdrawn that was handed out")
		}
	}
	if n != 1 {
		t.Errorf("%d repeats, want 1", n)
	}
	ft.wantEmpty()
}

// TestFlightsAreBounded: whoever makes a list long makes no search long, and a Call that is not
// found among many is one of its own.
func TestFlightsAreBounded(t *testing.T) {
	t.Parallel()
	ft := newFlightTest(t)
	f := ft.front("192.0.2.1")
	var all []*call
	for i := range 4 * longestSearch {
		c := ft.call(f, 7, "mkdir")
		c.h.Message[c.h.Args] = byte(i) // without another XID
		ft.enter(c, entryFlying)
		all = append(all, c)
	}
	again := ft.call(f, 7, "mkdir")
	again.h.Message[again.h.Args] = 0
	ft.enter(again, entryFlying)
	for _, c := range append(all, again) {
		ft.fl.leave(c)
	}
	ft.wantEmpty()
}

func TestFlightAllocations(t *testing.T) {
	ft := newFlightTest(t)
	c := ft.call(ft.front("192.0.2.1"), 7, "mkdir")
	if n := testing.AllocsPerRun(1000, func() {
		ft.fl.enter(c)
		ft.fl.leave(c)
	}); n != 0 {
		t.Errorf("%v allocations for a Call", n)
	}
}

func BenchmarkFlight(b *testing.B) {
	ft := newFlightTest(nil)
	c := ft.call(ft.front("192.0.2.1"), 7, "mkdir")
	b.ReportAllocs()
	for b.Loop() {
		ft.fl.enter(c)
		ft.fl.leave(c)
	}
}
