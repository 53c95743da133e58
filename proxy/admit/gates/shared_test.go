package gates

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates/gatestest"
)

// ruledClients makes a client of each of n hosts whose Calls count for the rate that rate returns, and starts them.
func ruledClients(n int, clock func() int64, rate func() *SharedRate) []*fakeWaiter {
	clients := make([]*fakeWaiter, n)
	for i := range clients {
		f := &fakeWaiter{send: func(f *fakeWaiter) {
			if s := rate(); s != nil {
				s.ChargeCall(clock(), 500, &f.client.Waiter)
				s.ChargeReply(clock(), 500)
			} else {
				f.idle = true // it could send for ever
			}
		}}
		f.open(crowd.Host(1 + i))
		clients[i] = f
		f.run()
	}
	return clients
}

// TestSharedRate: what a rule matches has its rate in calls and in octets of Calls and Replies, whoever sends it, and hosts
// have as much of it.
func TestSharedRate(t *testing.T) {
	for _, rate := range []Rate{{Calls: 100}, {Octets: 100_000}, {Calls: 1000, Octets: 100_000}} {
		synctest.Test(t, func(t *testing.T) {
			clock := gatestest.BubbleClock()
			r := NewRates(metrics.New(), "nfs", Rate{}, Rate{}, []RuleRate{{"a", Rate{}}, {"b", rate}}, nil, clock)
			if r.Rule(0) != nil || r.Rule(2) != nil || (*Rates)(nil).Rule(0) != nil {
				t.Error("a rule without a rate has one")
			}
			clients := ruledClients(4, clock, func() *SharedRate { return r.Rule(1) })
			time.Sleep(10 * time.Second)
			synctest.Wait()
			n, least := 0, 1<<30
			for _, f := range clients {
				f.Lock()
				n, least = n+f.sent, min(least, f.sent)
				f.Unlock()
			}
			if n < 950 || n > 1050 {
				t.Errorf("%+v: %d Calls in ten seconds, want 1000", rate, n)
			}
			if least < 200 {
				t.Errorf("%+v: one of four hosts has sent %d Calls of %d", rate, least, n)
			}
			if w := r.Rule(1).Waiting(); w != len(clients) {
				t.Errorf("%d clients are said to wait, of %d", w, len(clients))
			}
			for _, f := range clients {
				f.Close(nil)
			}
			time.Sleep(time.Minute) // the timers end
		})
	}
}

// TestSharedRatesThatChange: a rate that stays keeps what it is owed, wherever its rule stands; clients that wait for one
// that changes go on under the new one, and for one that goes without any.
func TestSharedRatesThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, m := gatestest.BubbleClock(), metrics.New()
		var r *Rates
		at := 0 // the index of the rule
		set := func(rules ...RuleRate) {
			old := r
			r = NewRates(m, "nfs", Rate{}, Rate{}, rules, old, clock)
			at = slices.IndexFunc(rules, func(x RuleRate) bool { return x.Rule == "b" })
			if at < 0 {
				at = len(rules)
			}
			old.Replaced(r)
		}
		slow := RuleRate{"b", Rate{Calls: 1}}
		set(RuleRate{"a", Rate{Calls: 7}}, slow)
		other, was := r.Rule(0), r.Rule(1)
		set(RuleRate{"a", Rate{Calls: 7}}, slow)
		if r.Rule(0) != other || r.Rule(1) != was {
			t.Error("there are new rates, and nothing has changed")
		}
		was.bucket.charge(clock(), 1000, 0) // a debt of a quarter of an hour
		clients := ruledClients(3, clock, func() *SharedRate { return r.Rule(at) })
		if n := callsInASecond(clients); n != 0 {
			t.Errorf("%d Calls in debt", n)
		}
		set(slow, RuleRate{"c", Rate{}}, RuleRate{"a", Rate{Calls: 8}})
		if r.Rule(0) != was || r.Rule(2) == other {
			t.Error("a rate that has not changed is another, or one that has changed is the same")
		}
		if n := callsInASecond(clients); n != 0 {
			t.Errorf("%d Calls in debt after a reload that changes something else", n)
		}
		set(RuleRate{"b", Rate{Calls: 1000}})
		if n := callsInASecond(clients); n < 950 || n > 1300 {
			t.Errorf("%d Calls in a second at 1000", n)
		}
		set(slow)
		if n := callsInASecond(clients); n > 10 {
			t.Errorf("%d Calls in a second at 1", n)
		}
		last := r.Rule(0)
		set()
		if r != nil {
			t.Error("there are rates without a limit")
		}
		synctest.Wait()
		for _, f := range clients {
			f.Lock()
			if f.client.Shut() != 0 {
				t.Error("a client waits for a rate that is gone")
			}
			// A Call that was decided about before the reload.
			last.ChargeCall(clock(), 1<<30, &f.client.Waiter)
			last.ChargeCall(clock(), 1<<30, &f.client.Waiter)
			if f.client.Shut() != 0 {
				t.Error("a rate that is gone has a client wait")
			}
			f.Unlock()
			f.Close(nil)
		}
		time.Sleep(time.Minute) // the timers end
	})
}
