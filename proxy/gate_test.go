package proxy

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A fakeWaiter is a client that sends whenever the bridge reads from it.
type fakeWaiter struct {
	mu     sync.Mutex // stands for the loop
	ledger ledger
	left   flag
	sent   int
	send   func(*fakeWaiter)
	idle   bool
}

func (f *fakeWaiter) gone() bool          { return f.left.get() }
func (f *fakeWaiter) close(error)         { f.left.set() }
func (f *fakeWaiter) runOnLoop(t *ticket) { go t.Run() }
func (f *fakeWaiter) readOn(k gateKind) {
	if f.gone() {
		return
	}
	f.mu.Lock()
	f.ledger.shut &^= 1 << k
	f.mu.Unlock()
	f.run()
}

func (f *fakeWaiter) run() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ledger.shut == 0 && !f.idle {
		f.sent++
		f.send(f)
	}
}

// n is how many Calls the client has sent.
func (f *fakeWaiter) n() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

func (f *fakeWaiter) open() {
	for k := range gateTenantAddressRate { // the other gates are those of members
		f.ledger.tickets.of(k, f)
	}
}

// bubbleClock is the loops' clock in a bubble.
func bubbleClock() func() int64 {
	began := time.Now()
	return func() int64 { return int64(time.Since(began)) + int64(time.Hour) }
}

// TestBucketKeepsTheRate: clients that always have another Call get their rate, together,
// however long their Calls and Replies are.
func TestBucketKeepsTheRate(t *testing.T) {
	for _, tt := range []struct {
		rate  Rate
		octet int // of a Call and its Reply
		want  int // Calls in ten seconds
	}{
		{Rate{Calls: 5}, 100, 50},
		{Rate{Calls: 1000}, 100, 10_000},
		{Rate{Octets: 1 << 20}, 100_000, 104},
		{Rate{Calls: 1000, Octets: 1 << 20}, 10_000, 1048},
		{Rate{Octets: 1 << 20}, 8 << 20, 2}, // more than a second's worth at once
	} {
		t.Run(fmt.Sprint(tt.rate, tt.octet), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := bubbleClock()
				b := newBucket(gateListener, tt.rate, nil, clock)
				clients := make([]*fakeWaiter, 3)
				for i := range clients {
					f := &fakeWaiter{send: func(f *fakeWaiter) {
						b.chargeCall(clock(), tt.octet/2, &f.ledger)
						b.chargeReply(clock(), tt.octet-tt.octet/2)
					}}
					f.open()
					clients[i] = f
					f.run()
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				n := 0
				for _, f := range clients {
					n += f.sent
					f.left.set()
				}
				burst := tt.want/40 + len(clients) + b.atOnce
				if n < tt.want*19/20-1 || n > tt.want+burst {
					t.Errorf("%d Calls in ten seconds, want %d", n, tt.want)
				}
				time.Sleep(time.Minute) // the timer ends
			})
		})
	}
}

// TestBucketAndIdleClients: a client that is admitted and sends nothing delays the others
// by ten milliseconds.
func TestBucketAndIdleClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := bubbleClock()
		b := newBucket(gateListener, Rate{Calls: 100}, nil, clock)
		var clients []*fakeWaiter
		for i := range 20 {
			f := &fakeWaiter{send: func(f *fakeWaiter) {
				b.chargeCall(clock(), 0, &f.ledger)
				f.idle = i > 0 // one Call
			}}
			f.open()
			clients = append(clients, f)
			b.mu.Lock()
			b.charge(clock(), 10, 0)
			f.ledger.waitAt(gateListener, &b.gate)
			b.arm(1)
			b.mu.Unlock()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := clients[0].sent; n < 700 {
			t.Errorf("%d Calls in ten seconds, of which two went by in debt", n)
		}
		clients[0].left.set()
		time.Sleep(time.Minute)
	})
}

// TestRatesOfAddresses: an address that has connected again still owes what it owed, and
// the bridge forgets addresses that owe nothing.
func TestRatesOfAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := bubbleClock()
		r := newRates(metrics.New(), &ListenerOptions{Name: "nfs", ClientRate: Rate{Calls: 1}}, nil, clock)
		a := netip.MustParseAddr("192.0.2.1")
		var one, two, again ledger
		r.join(a, &one)
		r.join(a, &two)
		if one.buckets[0] != two.buckets[0] {
			t.Error("two connections of an address have a rate each")
		}
		owes := one.buckets[0]
		for range 100 {
			owes.charge(clock(), 1, 0)
		}
		r.leave(&one)
		r.leave(&two)
		others := func() {
			var l ledger
			for i := range 1 << 12 {
				r.join(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), &l)
				r.leave(&l)
			}
		}
		others()
		if r.join(a, &again); again.buckets[0] != owes {
			t.Error("an address that owed came back with nothing to pay")
		}
		r.leave(&again)
		if n := len(r.each.each); n > 1+sweepBuckets {
			t.Errorf("%d addresses are remembered", n)
		}
		time.Sleep(2 * time.Minute)
		others()
		if r.each.each[crowd.HostOf(a)] != nil {
			t.Error("an address that owes nothing is remembered")
		}
	})
}

// TestRatesOfHosts: an address is an IPv4 address or an IPv6 /64, because a client that has one address of a /64 can
// have them all. What one of them owes, all of them owe.
func TestRatesOfHosts(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
	} {
		clock := func() int64 { return 0 }
		for name, r := range map[string]*rates{
			"listener": newRates(metrics.New(), &ListenerOptions{Name: "nfs", ClientRate: Rate{Calls: 1}}, nil, clock),
			"tenant":   makeRates(rateLimits{each: Rate{Calls: 1}, eachKind: gateTenantAddressRate}, nil, clock),
		} {
			one, other := r.obtain(nil, netip.MustParseAddr(tt.a)), r.obtain(nil, netip.MustParseAddr(tt.b))
			if got := one[0] == other[0]; got != tt.same {
				t.Errorf("%s: %s and %s have one rate: %v, want %v", name, tt.a, tt.b, got, tt.same)
			}
		}
	}
}

// limitedClients makes n clients from address a that r limits, and starts them.
func limitedClients(n int, r *rates, a netip.Addr, clock func() int64) []*fakeWaiter {
	clients := make([]*fakeWaiter, n)
	for i := range clients {
		f := &fakeWaiter{send: func(f *fakeWaiter) {
			for _, b := range f.ledger.buckets {
				b.chargeCall(clock(), 100, &f.ledger)
			}
		}}
		f.open()
		clients[i] = f
		r.join(a, &f.ledger)
		f.run()
	}
	return clients
}

// callsInASecond returns how many Calls clients send in the next second.
func callsInASecond(clients []*fakeWaiter) int {
	sent := func() (n int) {
		for _, f := range clients {
			f.mu.Lock()
			n += f.sent
			f.mu.Unlock()
		}
		return n
	}
	before := sent()
	time.Sleep(time.Second)
	synctest.Wait()
	return sent() - before
}

// TestRatesThatChange: a client that waits for a rate that has changed goes on under the
// new rate, and a limit that has not changed keeps its debts.
func TestRatesThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, m := bubbleClock(), metrics.New()
		a := netip.MustParseAddr("192.0.2.1")
		o := ListenerOptions{Name: "nfs", Rate: Rate{Calls: 1_000_000}, ClientRate: Rate{Calls: 1}}
		r := newRates(m, &o, nil, clock)
		clients := limitedClients(3, r, a, clock)
		change := func(next ListenerOptions) {
			old := r
			r = newRates(m, &next, old, clock)
			if r != nil && r.all != old.all || r != nil && r.each == old.each {
				t.Errorf("%+v: not only the rate of addresses is another", next)
			}
			for _, f := range clients {
				f.mu.Lock()
				f.ledger.rates.leave(&f.ledger)
				r.join(a, &f.ledger)
				f.mu.Unlock()
			}
			old.replaced(r)
		}
		if again := newRates(m, &o, r, clock); again != r {
			t.Error("there are new rates, and nothing has changed")
		}
		b := r.each.each[crowd.HostOf(a)]
		b.mu.Lock()
		b.charge(clock(), 1000, 0) // a debt of a quarter of an hour
		b.mu.Unlock()
		if n := callsInASecond(clients); n != 0 {
			t.Errorf("%d Calls in debt", n)
		}
		o.ClientRate.Calls = 1000
		change(o)
		if n := callsInASecond(clients); n < 950 || n > 1300 {
			t.Errorf("%d Calls in a second at 1000", n)
		}
		o.ClientRate.Calls = 10
		change(o)
		if n := callsInASecond(clients); n < 7 || n > 17 { // each of the three may have a Call that is not paid for
			t.Errorf("%d Calls in a second at 10", n)
		}
		if refs := r.each.each[crowd.HostOf(a)].refs; refs != len(clients) {
			t.Errorf("%d connections of %d are known", refs, len(clients))
		}
		for _, f := range clients {
			f.left.set()
			f.ledger.rates.leave(&f.ledger)
		}
		if refs := r.each.each[crowd.HostOf(a)].refs; refs != 0 {
			t.Errorf("%d connections are known, and none is there", refs)
		}
		r.replaced(nil)
		time.Sleep(time.Minute) // the timers end
	})
}

// testAdmission is the admission of clients to an upstream that has just started.
func testAdmission() *admission {
	return newAdmission(metrics.New(), "storage", pool.NewSlowStart(16, slowStartOctets), bubbleClock(), func() time.Duration { return 30 * time.Second })
}

// otherCall returns a Call of a procedure that is not NULL.
func otherCall() *call {
	c := &call{}
	c.h.Procedure = 1
	return c
}

// A callList is the Calls that the bridge has read.
type callList struct {
	mu    sync.Mutex
	calls []*call
}

func (l *callList) add(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

func (l *callList) n() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls)
}

// answer answers all of them by a.
func (l *callList) answer(a *admission) {
	l.mu.Lock()
	calls := l.calls
	l.calls = nil
	l.mu.Unlock()
	for _, c := range calls {
		a.answered(c, 0)
	}
}

// TestSlowStartOfClients: the bridge reads few Calls until there are Replies, each Reply
// makes room for two Calls, and clients that are admitted and have nothing to send do not
// stop the others.
func TestSlowStartOfClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAdmission()
		var calls callList
		var clients []*fakeWaiter
		for i := range 100 {
			f := &fakeWaiter{send: func(f *fakeWaiter) {
				c := otherCall()
				c.entry.Cost = 200
				a.enter(c, &f.ledger)
				calls.add(c)
				f.idle = i%2 == 1 || f.sent > 2000 // every other one sends one Call only
				if a.slowStart.Over() {
					f.idle = true
				}
			}}
			f.open()
			f.ledger.host = &host{}
			clients = append(clients, f)
			f.run()
		}
		if n := calls.n(); n != 12+99 {
			t.Errorf("%d Calls of 100 clients are in, want 12 of the first and one of each", n)
		}
		rounds := 0
		for ; !a.slowStart.Over() && rounds < 1000; rounds++ {
			calls.answer(a)
			synctest.Wait()
			if a.slowStart.Over() {
				break
			}
			n := calls.n()
			if most := a.slowStart.Limit(); n > most+len(clients) {
				t.Errorf("%d Calls are in, %d may be", n, most)
			}
			if n == 0 {
				time.Sleep(admissionTick)
				synctest.Wait()
			}
		}
		if rounds > 20 {
			t.Errorf("%d rounds until the slow start was over", rounds)
		}
		synctest.Wait()
		if a.gate.n != 0 {
			t.Errorf("%d clients still wait", a.gate.n)
		}
		time.Sleep(time.Second)
	})
}

// TestSlowStartOfNewClients: the bridge does not read from a client that connects while
// there is no room, and closes it when that lasts too long. There is room again soon when Calls
// are not answered, for a thousand at most.
func TestSlowStartOfNewClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAdmission()
		var clients []*fakeWaiter
		for range 1200 {
			f := &fakeWaiter{send: func(f *fakeWaiter) {
				a.enter(otherCall(), &f.ledger)
				f.idle = true
			}}
			f.open()
			f.ledger.host = &host{}
			a.arrive(&f.ledger)
			f.run()
			clients = append(clients, f)
		}
		count := func() (sent, left int) {
			for _, f := range clients {
				sent += f.n()
				if f.left.get() {
					left++
				}
			}
			return sent, left
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if sent, left := count(); sent != 16 || left != 0 {
			t.Errorf("%d Calls of %d clients are in, and %d clients gone", sent, len(clients), left)
		}
		// Calls that hang do not keep others out, and they do not use up the memory.
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if sent, left := count(); sent < 500 || sent > 1024 || left != 0 {
			t.Errorf("%d Calls of %d clients are in, and %d clients gone", sent, len(clients), left)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if sent, left := count(); sent > 1024 || left < len(clients)-1024 {
			t.Errorf("later: %d Calls of %d clients are in, and %d clients gone", sent, len(clients), left)
		}
	})
}

// TestSlowStartPlaces: a client that is admitted and ends, or sends NULL, gives its place to
// the next at once, and none waits for the tick.
func TestSlowStartPlaces(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(a *admission, f *fakeWaiter)
	}{
		{"ends", func(a *admission, f *fakeWaiter) { f.left.set(); a.gone(&f.ledger) }},
		{"sends NULL", func(a *admission, f *fakeWaiter) { a.enter(&call{}, &f.ledger) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := testAdmission()
				var clients []*fakeWaiter
				for range 400 {
					f := &fakeWaiter{send: func(f *fakeWaiter) { f.idle = true }}
					f.open()
					a.arrive(&f.ledger)
					f.run()
					clients = append(clients, f)
				}
				for i, f := range clients { // each of them when it is admitted
					synctest.Wait()
					if f.n() != 1 {
						t.Fatalf("client %d waits, and no place is taken", i)
					}
					tt.send(a, f)
				}
				a.mu.Lock()
				coming := a.coming
				a.mu.Unlock()
				if coming != 0 || a.slowStart.Room() != 16 {
					t.Errorf("%d clients are to come, there is room for %d Calls", coming, a.slowStart.Room())
				}
				time.Sleep(time.Second) // the timer ends
			})
		})
	}
}

// An admittedClient is a client that only counts how often it may go on.
type admittedClient struct {
	client
	n int
}

func (c *admittedClient) admit() { c.n++ }

// TestSlowStartOfAnotherUpstream: clients whose listener has other upstreams wait for the slow start of the old one no
// more, and leave their places there to others.
func TestSlowStartOfAnotherUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAdmission()
		old, other := &upstream{admission: a}, &upstream{admission: testAdmission()}
		client := func() (*fakeWaiter, *admittedClient) {
			s := &admittedClient{}
			f := &fakeWaiter{send: func(f *fakeWaiter) { a.enter(otherCall(), &f.ledger); f.idle = true }}
			f.open()
			f.ledger.host, f.ledger.front = &host{}, &front{client: s}
			a.arrive(&f.ledger)
			return f, s
		}
		coming, _ := client()
		var waiting []*fakeWaiter
		for coming := 1; coming < 16; coming++ {
			f, _ := client()
			f.run()
		}
		moves, admitted := client()
		for range 3 {
			f, _ := client()
			waiting = append(waiting, f)
		}
		if coming.ledger.shut != 0 || moves.ledger.shut == 0 {
			t.Fatal("the slow start has other room than the test wants")
		}
		moves.ledger.followSlowStart([]*upstream{other, old})
		if moves.ledger.shut == 0 || admitted.n != 0 {
			t.Error("a client whose upstream stays goes on")
		}
		moves.ledger.followSlowStart([]*upstream{other})
		if moves.ledger.shut != 0 || admitted.n != 1 {
			t.Error("a client whose upstream is another one waits")
		}
		if !moves.ledger.waitAt(gateSlowStart, &other.admission.gate) { // its old ticket is still at the old gate
			t.Error("it cannot wait for the other upstream")
		}
		coming.ledger.followSlowStart(nil)
		synctest.Wait()
		n := 0
		for _, f := range waiting {
			n += f.n()
		}
		if n != 1 || moves.ledger.shut == 0 {
			t.Errorf("%d clients have the place of one that has left, and the one at the other gate goes on: %v", n, moves.ledger.shut == 0)
		}
		for _, f := range append(waiting, moves, coming) {
			f.left.set()
		}
		time.Sleep(time.Minute) // the timers end
	})
}

// TestSlowStartOfHosts: while one host with many connections keeps sending Calls that are not answered,
// the Calls of another are read at once.
func TestSlowStartOfHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAdmission()
		client := func(h *host, send func(f *fakeWaiter, c *call)) *fakeWaiter {
			f := &fakeWaiter{send: func(f *fakeWaiter) {
				c := otherCall()
				c.entry.Cost = 200
				a.enter(c, &f.ledger)
				send(f, c)
			}}
			f.open()
			f.ledger.host = h
			a.arrive(&f.ledger)
			f.run()
			return f
		}
		hog, other := &host{}, &host{}
		var clients []*fakeWaiter
		for range 50 {
			clients = append(clients, client(hog, func(f *fakeWaiter, _ *call) { f.idle = f.sent >= 10 }))
		}
		began := time.Now()
		var calls callList
		f := client(other, func(f *fakeWaiter, c *call) {
			f.idle = f.sent >= 100
			calls.add(c)
		})
		clients = append(clients, f)
		for f.n() < 100 && time.Since(began) < time.Minute {
			synctest.Wait()
			calls.answer(a)
			synctest.Wait()
			if calls.n() == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		if took := time.Since(began); took > admissionTick {
			t.Errorf("the other host sent its hundred Calls in %v, want less than %v", took, admissionTick)
		}
		for _, f := range clients {
			f.left.set()
		}
		time.Sleep(time.Minute)
	})
}

// TestGateIsFair: hosts take turns at a gate, and the clients of a host leave in the order they came.
func TestGateIsFair(t *testing.T) {
	var g gate
	hosts := []*host{{}, {}, {}}
	number := map[*ticket]string{}
	for i, n := range []int{6, 1, 3} {
		for j := range n {
			f := &fakeWaiter{}
			f.open()
			number[f.ledger.tickets.first] = fmt.Sprint(i, ".", j)
			f.ledger.tickets.first.since = int64(j)
			g.put(f.ledger.tickets.first, hosts[i])
		}
	}
	names := func(t *ticket) (s []string) {
		for ; t != nil; t = t.next {
			s = append(s, number[t])
		}
		return s
	}
	if got, want := fmt.Sprint(names(g.remove(4))), "[0.0 1.0 2.0 0.1]"; got != want {
		t.Errorf("%s leave, want %s", got, want)
	}
	if got, want := fmt.Sprint(names(g.since(3))), "[2.1 0.2 2.2]"; got != want {
		t.Errorf("%s have waited too long, want %s", got, want)
	}
	if got, want := fmt.Sprint(names(g.remove(4))), "[0.3 0.4 0.5]"; got != want || g.n != 0 || len(g.of) != 0 || g.first != nil {
		t.Errorf("%s leave, want %s; %d are left", got, want, g.n)
	}
}

// TestGatesDoNotAllocate: a Call costs no allocation in a bucket or in an admission.
func TestGatesDoNotAllocate(t *testing.T) {
	clock := bubbleClock()
	b := newBucket(gateClient, Rate{Calls: 10_000_000, Octets: 1 << 40}, nil, clock)
	a := testAdmission()
	f := &fakeWaiter{}
	f.open()
	c := otherCall()
	if n := testing.AllocsPerRun(1000, func() {
		b.chargeCall(clock(), 100, &f.ledger)
		b.chargeReply(clock(), 100)
		a.enter(c, &f.ledger)
		a.dropped(c)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFollowForgetsQueues: a client forgets its queues at upstreams that have ended, and only those.
func TestFollowForgetsQueues(t *testing.T) {
	stays, goes, gone := &upstream{name: "a"}, &upstream{name: "b"}, &upstream{name: "a"}
	for _, u := range []*upstream{stays, goes, gone} {
		u.current.Store(&UpstreamOptions{})
	}
	p := &Proxy{upstreams: map[string]*upstream{"a": stays}, retired: map[*upstream]struct{}{goes: {}}}
	l := &listener{p: p}
	l.current.Store(&listenerSettings{})
	g := ledger{front: &front{listener: l, peer: netip.MustParseAddrPort("192.0.2.1:1")}, weight: 1}
	for _, u := range []*upstream{gone, goes, stays, gone} {
		g.queues = append(g.queues, &clientQueue{u: u})
	}
	g.follow()
	if len(g.queues) != 2 || g.queues[0].u != goes || g.queues[1].u != stays {
		t.Errorf("%d queues are left", len(g.queues))
	}
}

// TestFollowReweighs: when the weight of a client changes, its host gives way by the new one, at listeners and where
// connections are pinned.
func TestFollowReweighs(t *testing.T) {
	l := &listener{p: &Proxy{}}
	u := &upstream{}
	weights := func(w int) {
		l.current.Store(&listenerSettings{opts: ListenerOptions{Weights: []Weight{{Clients: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Weight: w}}}})
	}
	weights(8)
	host, pins := &host{}, &pinHost{quota: pool.NewQuota(1).Host()}
	var all []*pin
	for range 4 {
		f := &front{listener: l, peer: netip.MustParseAddrPort("192.0.2.1:1")}
		f.ledger.front, f.ledger.weight, f.place.Value = f, 8, f
		l.clients.Add(&f.place, f.ledger.addr(), 8)
		p := &pin{u: u, front: f, host: host}
		u.pins.add(p, pins)
		all = append(all, p)
	}
	other := netip.MustParseAddr("198.51.100.1")
	yields := func() [2]bool {
		_, a := l.clients.Yields(other, 1)
		_, b := u.pins.all.Yields(other, 1)
		return [2]bool{a, b}
	}
	if got := yields(); got != [2]bool{} {
		t.Errorf("a host with weight 8 gives way with 4 connections: %v", got)
	}
	weights(1)
	for _, p := range all {
		p.front.ledger.follow()
		p.reweigh(p.front.ledger.weight) // as its queue does
	}
	if got := yields(); got != [2]bool{true, true} {
		t.Errorf("a host whose weight is 1 now gives way with 4 connections: %v", got)
	}
}
