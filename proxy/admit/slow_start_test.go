package admit

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates/gatestest"
)

// enter has a count a Call of the client.
func (f *fakeWaiter) enter(a *SlowStart) *sentCall {
	c := &sentCall{cost: 200}
	a.enter(&c.charge, 1, c.cost, &f.client.starter)
	return c
}

// testAdmission is the admission of clients to an upstream that has just started.
func testAdmission() *SlowStart {
	return NewSlowStart(metrics.New(), "storage", slowstart.New(16, slowStartOctets), gatestest.BubbleClock(), func() time.Duration { return 30 * time.Second })
}

// A sentCall is a Call that the bridge has read.
type sentCall struct {
	charge Charge
	cost   int
}

// A callList is the Calls that the bridge has read.
type callList struct {
	mu    sync.Mutex
	calls []*sentCall
}

func (l *callList) add(c *sentCall) {
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
func (l *callList) answer(a *SlowStart) {
	l.mu.Lock()
	calls := l.calls
	l.calls = nil
	l.mu.Unlock()
	for _, c := range calls {
		a.Answered(&c.charge, c.cost, 0)
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
				calls.add(f.enter(a))
				f.idle = i%2 == 1 || f.sent > 2000 // every other one sends one Call only
				if a.slowStart.Over() {
					f.idle = true
				}
			}}
			f.open(&Host{})
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
				time.Sleep(slowStartTick)
				synctest.Wait()
			}
		}
		if rounds > 20 {
			t.Errorf("%d rounds until the slow start was over", rounds)
		}
		synctest.Wait()
		if a.gate.Waiting() != 0 {
			t.Errorf("%d clients still wait", a.gate.Waiting())
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
				f.enter(a)
				f.idle = true
			}}
			f.open(&Host{})
			f.client.ArriveAt(a)
			f.run()
			clients = append(clients, f)
		}
		count := func() (sent, left int) {
			for _, f := range clients {
				sent += f.n()
				if f.Gone() {
					left++
				}
			}
			return sent, left
		}
		time.Sleep(slowstart.Age - time.Millisecond)
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
		send func(a *SlowStart, f *fakeWaiter)
	}{
		{"ends", func(a *SlowStart, f *fakeWaiter) { f.Close(nil); a.gone(&f.client.starter) }},
		{"sends NULL", func(a *SlowStart, f *fakeWaiter) { a.enter(&Charge{}, 0, 0, &f.client.starter) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := testAdmission()
				var clients []*fakeWaiter
				for range 400 {
					f := &fakeWaiter{send: func(f *fakeWaiter) { f.idle = true }}
					f.open(&Host{})
					f.client.ArriveAt(a)
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
				coming := len(a.coming)
				a.mu.Unlock()
				if coming != 0 || a.slowStart.Room() != 16 {
					t.Errorf("%d clients are to come, there is room for %d Calls", coming, a.slowStart.Room())
				}
				time.Sleep(time.Second) // the timer ends
			})
		})
	}
}

// TestSlowStartOfAnotherUpstream: clients whose listener has other upstreams wait for the slow start of the old one no
// more, and leave their places there to others.
func TestSlowStartOfAnotherUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAdmission()
		other := testAdmission()
		client := func() *fakeWaiter {
			f := &fakeWaiter{send: func(f *fakeWaiter) { f.enter(a); f.idle = true }}
			f.open(&Host{})
			f.client.ArriveAt(a)
			return f
		}
		coming := client()
		var waiting []*fakeWaiter
		for coming := 1; coming < 16; coming++ {
			f := client()
			f.run()
		}
		moves := client()
		admitted := 0
		moves.resumed = &admitted
		for range 3 {
			f := client()
			waiting = append(waiting, f)
		}
		if coming.client.waiter.Shut() != 0 || moves.client.waiter.Shut() == 0 {
			t.Fatal("the slow start has other room than the test wants")
		}
		moves.client.FollowSlowStart(func(x *SlowStart) bool { return x == a || x == other })
		if moves.client.waiter.Shut() == 0 || admitted != 0 {
			t.Error("a client whose upstream stays goes on")
		}
		moves.client.FollowSlowStart(func(x *SlowStart) bool { return x == other })
		if moves.client.waiter.Shut() != 0 || admitted != 1 {
			t.Error("a client whose upstream is another one waits")
		}
		if moves.client.waiter.WaitAt(gates.GateSlowStart, &other.gate) == nil { // its old ticket is still at the old gate
			t.Error("it cannot wait for the other upstream")
		}
		coming.client.FollowSlowStart(func(*SlowStart) bool { return false })
		synctest.Wait()
		n := 0
		for _, f := range waiting {
			n += f.n()
		}
		if n != 1 || moves.client.waiter.Shut() == 0 {
			t.Errorf("%d clients have the place of one that has left, and the one at the other gate goes on: %v", n, moves.client.waiter.Shut() == 0)
		}
		for _, f := range append(waiting, moves, coming) {
			f.Close(nil)
		}
		time.Sleep(time.Minute) // the timers end
	})
}

// TestSlowStartOfHosts: while one host with many connections keeps sending Calls that are not answered,
// the Calls of another are read at once.
func TestSlowStartOfHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAdmission()
		client := func(h *Host, send func(f *fakeWaiter, c *sentCall)) *fakeWaiter {
			f := &fakeWaiter{send: func(f *fakeWaiter) {
				send(f, f.enter(a))
			}}
			f.open(h)
			f.client.ArriveAt(a)
			f.run()
			return f
		}
		hog, other := &Host{}, &Host{}
		var clients []*fakeWaiter
		for range 50 {
			clients = append(clients, client(hog, func(f *fakeWaiter, _ *sentCall) { f.idle = f.sent >= 10 }))
		}
		began := time.Now()
		var calls callList
		f := client(other, func(f *fakeWaiter, c *sentCall) {
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
		if took := time.Since(began); took > slowStartTick {
			t.Errorf("the other host sent its hundred Calls in %v, want less than %v", took, slowStartTick)
		}
		for _, f := range clients {
			f.Close(nil)
		}
		time.Sleep(time.Minute)
	})
}
