package gates

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates/gatestest"
)

// TestRatesOfAddresses: an address that has connected again still owes what it owed, and
// the bridge forgets addresses that owe nothing.
func TestRatesOfAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := gatestest.BubbleClock()
		r := NewRates(metrics.New(), "nfs", Rate{}, Rate{Calls: 1}, nil, nil, clock)
		one, two, again := clientAt("192.0.2.1"), clientAt("192.0.2.1"), clientAt("192.0.2.1")
		one.follow(r)
		two.follow(r)
		if one.rates.buckets[0] != two.rates.buckets[0] {
			t.Error("two connections of an address have a rate each")
		}
		owes := one.rates.buckets[0]
		for range 100 {
			owes.charge(clock(), 1, 0)
		}
		one.follow(nil)
		two.follow(nil)
		others := func() {
			for i := range 1 << 12 {
				l := clientAt(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String())
				l.follow(r)
				l.follow(nil)
			}
		}
		others()
		if again.follow(r); again.rates.buckets[0] != owes {
			t.Error("an address that owed came back with nothing to pay")
		}
		again.follow(nil)
		if n := len(r.each.buckets); n > 1+sweepBuckets {
			t.Errorf("%d addresses are remembered", n)
		}
		time.Sleep(2 * time.Minute)
		others()
		if r.each.buckets[one.Host()] != nil {
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
		for name, r := range map[string]*Rates{
			"listener": NewRates(metrics.New(), "nfs", Rate{}, Rate{Calls: 1}, nil, nil, clock),
			"tenant":   (*Rates)(nil).Changed(nil, NewLimit(GateTenantAddressRate, Rate{Calls: 1}, nil, clock)),
		} {
			one, other := r.join(hostAt(tt.a)), r.join(hostAt(tt.b))
			if got := one[0] == other[0]; got != tt.same {
				t.Errorf("%s: %s and %s have one rate: %v, want %v", name, tt.a, tt.b, got, tt.same)
			}
		}
	}
}

// limitedClients makes n clients of h that r limits, and starts them.
func limitedClients(n int, r *Rates, h crowd.Host, clock func() int64) []*fakeWaiter {
	clients := make([]*fakeWaiter, n)
	for i := range clients {
		f := &fakeWaiter{send: func(f *fakeWaiter) {
			f.client.rates.ChargeCall(clock(), 100, &f.client.Waiter)
		}}
		f.open(h)
		clients[i] = f
		f.client.follow(r)
		f.run()
	}
	return clients
}

// callsInASecond returns how many Calls clients send in the next second.
func callsInASecond(clients []*fakeWaiter) int {
	sent := func() (n int) {
		for _, f := range clients {
			f.Lock()
			n += f.sent
			f.Unlock()
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
		clock, m := gatestest.BubbleClock(), metrics.New()
		h, all := hostAt("192.0.2.1"), Rate{Calls: 1_000_000}
		r := NewRates(m, "nfs", all, Rate{Calls: 1}, nil, nil, clock)
		clients := limitedClients(3, r, h, clock)
		change := func(each Rate) {
			old := r
			r = NewRates(m, "nfs", all, each, nil, old, clock)
			if r != nil && r.all != old.all || r != nil && r.each == old.each {
				t.Errorf("%+v: not only the rate of addresses is another", each)
			}
			for _, f := range clients {
				f.Lock()
				f.client.follow(r)
				f.Unlock()
			}
			old.Replaced(r)
		}
		if again := NewRates(m, "nfs", all, Rate{Calls: 1}, nil, r, clock); again != r {
			t.Error("there are new rates, and nothing has changed")
		}
		b := r.each.buckets[h]
		b.mu.Lock()
		b.charge(clock(), 1000, 0) // a debt of a quarter of an hour
		b.mu.Unlock()
		if n := callsInASecond(clients); n != 0 {
			t.Errorf("%d Calls in debt", n)
		}
		change(Rate{Calls: 1000})
		if n := callsInASecond(clients); n < 950 || n > 1300 {
			t.Errorf("%d Calls in a second at 1000", n)
		}
		change(Rate{Calls: 10})
		if n := callsInASecond(clients); n < 7 || n > 17 { // each of the three may have a Call that is not paid for
			t.Errorf("%d Calls in a second at 10", n)
		}
		if refs := r.each.buckets[h].refs; refs != len(clients) {
			t.Errorf("%d connections of %d are known", refs, len(clients))
		}
		for _, f := range clients {
			f.Close(nil)
			f.client.follow(nil)
		}
		if refs := r.each.buckets[h].refs; refs != 0 {
			t.Errorf("%d connections are known, and none is there", refs)
		}
		r.Replaced(nil)
		time.Sleep(time.Minute) // the timers end
	})
}
