package identity

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// A testFlight is a Call for the tests of Flights.
type testFlight struct {
	Flight
	h    oncrpc.Call
	xid  uint32 // at the upstream
	sent Transmission
	held bool
}

func (f *testFlight) Transmission() Transmission { return f.sent }
func (f *testFlight) Hold()                      { f.held = true }

// A testConn is a client's connection.
type testConn struct {
	peer netip.AddrPort
	rdma bool
}

// flightTest makes Calls for the tests of Flights.
type flightTest struct {
	t  *testing.T
	fl *Flights
}

func newFlightTest(t *testing.T) *flightTest { return &flightTest{t, NewFlights()} }

// conn is a connection over RDMA from the address a.
func (ft *flightTest) conn(a string) *testConn {
	return &testConn{netip.AddrPortFrom(netip.MustParseAddr(a), 1), true}
}

// call is a Call of someone on the connection c.
func (ft *flightTest) call(c *testConn, xid uint32, args string) *testFlight {
	s := someone()
	f := &testFlight{h: *s.call(xid, args)}
	f.xid = xidOf(testPermutation(1), &f.h)
	f.sent = Transmission{Header: &f.h, Origin: OriginOf(c.peer, c.rdma), Client: c}
	return f
}

// enter is Flights.Enter, with what it has to do.
func (ft *flightTest) enter(f *testFlight, want Entry) {
	ft.t.Helper()
	if got := ft.fl.Enter(&f.Flight, f, f.xid); got != want || f.held != (want == Held) {
		ft.t.Errorf("XID %d: entry %d, want %d; held: %v", f.h.XID, got, want, f.held)
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
	a, b, far := ft.conn("192.0.2.1"), ft.conn("192.0.2.1"), ft.conn("192.0.2.2")
	first := ft.call(a, 7, "mkdir")
	ft.enter(first, Alone)
	ft.enter(ft.call(a, 7, "mkdir"), Dropped)
	second := ft.call(b, 7, "mkdir")
	ft.enter(second, Held)
	ft.enter(ft.call(b, 7, "mkdir"), Dropped)

	over := &testConn{a.peer, false} // TCP from the same port
	others := []*testFlight{ft.call(far, 7, "mkdir"), ft.call(over, 7, "mkdir"), ft.call(b, 8, "mkdir"), ft.call(b, 7, "rmdir")}
	uid := ft.call(b, 7, "mkdir")
	uid.h.Message[oncrpc.CredentialPos+uid.h.CredentialLen-5]++ // of the gid
	other := ft.call(b, 7, "mkdir")
	other.sent.Upstream = 1
	for _, c := range append(others, uid, other) {
		ft.enter(c, Alone)
		if r := ft.fl.Leave(&c.Flight); r != nil {
			t.Error("a Call that nothing repeats has a repeat")
		}
	}

	// The server executes a Call of a session once, whatever connection it comes on.
	again := ft.call(b, 7, "mkdir")
	again.sent.Session = true
	ft.fl.Withdraw(&second.Flight)
	ft.enter(again, Alone)
	ft.fl.Leave(&again.Flight)
	again = ft.call(a, 7, "mkdir")
	again.sent.Session = true
	ft.enter(again, Dropped)
	ft.enter(second, Held)

	// An RDMA client has a credit for each.
	rdma := ft.conn("192.0.2.1")
	for range 3 {
		c := ft.call(rdma, 7, "mkdir")
		c.sent.Credited = true
		ft.enter(c, Held)
		if !ft.fl.Withdraw(&c.Flight) {
			t.Error("the repeat of an RDMA client is not held")
		}
	}

	third := ft.call(ft.conn("192.0.2.1"), 7, "mkdir")
	ft.enter(third, Held)
	if next := ft.fl.Replace(&first.Flight); next != &third.Flight {
		t.Fatal("the latest repeat did not take the place of the Call that ended")
	}
	ft.enter(ft.call(a, 7, "mkdir"), Held) // first has ended
	if !ft.fl.Withdraw(&second.Flight) || ft.fl.Withdraw(&second.Flight) {
		t.Error("a repeat whose client has gone can be withdrawn once")
	}
	n := 0
	for r := ft.fl.Leave(&third.Flight); r != nil; r = r.Unlink() {
		n++
		if ft.fl.Withdraw(r) {
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
	f := ft.conn("192.0.2.1")
	var all []*testFlight
	for i := range 4 * longestSearch {
		c := ft.call(f, 7, "mkdir")
		c.h.Message[c.h.Args] = byte(i) // without another XID
		ft.enter(c, Alone)
		all = append(all, c)
	}
	again := ft.call(f, 7, "mkdir")
	again.h.Message[again.h.Args] = 0
	ft.enter(again, Alone)
	for _, c := range append(all, again) {
		ft.fl.Leave(&c.Flight)
	}
	ft.wantEmpty()
}

func TestFlightAllocations(t *testing.T) {
	ft := newFlightTest(t)
	c := ft.call(ft.conn("192.0.2.1"), 7, "mkdir")
	if n := testing.AllocsPerRun(1000, func() {
		ft.fl.Enter(&c.Flight, c, c.xid)
		ft.fl.Leave(&c.Flight)
	}); n != 0 {
		t.Errorf("%v allocations for a Call", n)
	}
}

func BenchmarkFlight(b *testing.B) {
	ft := newFlightTest(nil)
	c := ft.call(ft.conn("192.0.2.1"), 7, "mkdir")
	b.ReportAllocs()
	for b.Loop() {
		ft.fl.Enter(&c.Flight, c, c.xid)
		ft.fl.Leave(&c.Flight)
	}
}
