package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

// loopsServed dispatches n Calls on two loops with a seat each. There is one flow for each
// element of homes, which is its loop, and each flow always has another Call. loopsServed
// returns how often each flow was served, and how many Calls were dispatched on their own
// client's loop.
func loopsServed(t *testing.T, homes []int, n int) (served []int, own int) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 2, Loops: 2, QueueWait: time.Hour}, d)
		index := map[*Flow]int{}
		flows := make([]*Flow, len(homes))
		for i := range homes {
			flows[i] = &Flow{}
			index[flows[i]] = i
			for range 2 * quantum / leastCost {
				submit(t, p, flows[i], 200, homes[i])
			}
		}
		served = make([]int, len(homes))
		for done := 0; done < n; {
			for _, m := range d.members {
				for _, e := range m.take() {
					i := index[e.Flow]
					served[i]++
					done++
					if homes[i] == m.affinity {
						own++
					}
					submit(t, p, flows[i], 200, homes[i])
					m.seat.Done(e, m.affinity)
				}
			}
		}
	})
	return served, own
}

// TestOwnLoopFirst: loops that have equally many clients serve their own.
func TestOwnLoopFirst(t *testing.T) {
	const n = 20000
	_, own := loopsServed(t, []int{0, 1, 0, 1, 0, 1}, n)
	if own < n*95/100 {
		t.Errorf("%d of %d Calls went out on their client's loop", own, n)
	}
}

// TestSharesDoNotDependOnLoops: a client that has a loop to itself gets no more than each of
// the nine clients that share one.
func TestSharesDoNotDependOnLoops(t *testing.T) {
	const n = 40000
	homes := []int{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	served, _ := loopsServed(t, homes, n)
	mean := n / len(homes)
	for i, got := range served {
		if got < mean*9/10 || got > mean*11/10 {
			t.Errorf("flow %d: %d Calls served, the mean is %d: %v", i, got, mean, served)
		}
	}
}

// TestIdleLoopCatchesUpWithNothing: a loop without Calls of its own dispatches those of
// others, and when it has some again it does not make up for that time.
func TestIdleLoopCatchesUpWithNothing(t *testing.T) {
	qs := newQueues(&shared{}, 2, 1)
	busy, late := &Flow{}, &Flow{}
	push := func(f *Flow, here int) { qs.push(&Entry{Flow: f, Cost: 200}, here) }
	for range 1000 {
		push(busy, 0)
	}
	for range 500 {
		if e := next(&qs, 1, 0); e.Flow != busy {
			t.Fatal("a loop without Calls does not dispatch those of others")
		}
	}
	for range 300 {
		push(late, 1)
	}
	got := 0
	for range 200 {
		if next(&qs, 0, 0).Flow == late {
			got++
		}
	}
	if got > 100 {
		t.Errorf("a flow that came late got %d of 200 turns on another loop", got)
	}
	if qs.n != 600 {
		t.Errorf("%d entries counted, want 600", qs.n)
	}
	for qs.n > 0 {
		next(&qs, 1, 0)
	}
	if qs.byLoop[0].n != 0 || qs.byLoop[1].n != 0 || qs.byLoop[0].weight != 0 || qs.byLoop[1].weight != 0 {
		t.Errorf("left over: %+v", qs.byLoop)
	}
}

// TestLoneHostKeepsItsLoops: the loops dispatch their own Calls of a host with many flows on each,
// although one of them is ahead for a while, and hurry when the host has a neighbour.
func TestLoneHostKeepsItsLoops(t *testing.T) {
	const flows, deep = 64, 64
	for _, tt := range []struct {
		neighbour bool
		own       bool
	}{{false, true}, {true, false}} {
		qs := newQueues(&shared{}, 2, 1)
		host, other := &Host{}, &Flow{Host: &Host{}}
		for i := range 2 * flows {
			f := &Flow{Host: host}
			for range deep {
				qs.push(&Entry{Flow: f, Cost: 200}, i%2)
			}
		}
		if tt.neighbour {
			for range 1000 {
				qs.push(&Entry{Flow: other, Cost: 200}, 1)
			}
		}
		of := map[int32]int{}
		for range flows * deep / 2 {
			of[next(&qs, 0, 0).Flow.loopQueue-1]++
		}
		if own := of[1] == 0; own != tt.own {
			t.Errorf("neighbour %v: %d Calls of its own loop and %d of the other's", tt.neighbour, of[0], of[1])
		}
	}
}

// TestBusyQueueDoesNotLag: a host with one Call, in the queue of a loop that has no credit, waits no longer because another
// host of that queue has many connections.
func TestBusyQueueDoesNotLag(t *testing.T) {
	qs := newQueues(&shared{}, 2, 1)
	push := func(f *Flow, here, n int) {
		for range n {
			qs.push(&Entry{Flow: f, Cost: 200}, here)
		}
	}
	host, one := &Host{}, &Flow{Host: &Host{}}
	push(&Flow{Host: &Host{}}, 0, 8000)
	for range 400 {
		push(&Flow{Host: host}, 1, 16)
	}
	push(one, 1, 1)
	n := 1
	for ; next(&qs, 0, 0).Flow != one; n++ {
	}
	if most := 2 * largestLag * maxLag / leastCost; n > most {
		t.Errorf("%d Calls of two other hosts went before it, want at most %d", n, most)
	}
}

// next removes the Call that a seat dispatches next.
func next(qs *queues, loop, seat int) *Entry {
	q := qs.turn(loop, seat, time.Time{})
	return qs.popOf(q.front())
}

// TestOtherLoopOfSlowServer: while a server answers few Calls, a host of a loop without a connection does not wait until
// the hosts of the other loop have had as many as its queue may be behind, which takes half a minute.
func TestOtherLoopOfSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, Options{Connections: 1, Share: 100}, 4)
		c.late = 500 * time.Millisecond
		for range 5 {
			c.clients = append(c.clients, &crowdClient{flow: Flow{Host: &Host{}}, slots: map[int]bool{}})
		}
		one := c.clients[4]
		one.home = 1
		for _, cl := range c.clients[:4] {
			for range 16 {
				c.send(cl)
			}
		}
		c.run(2 * time.Second)
		c.send(one)
		c.run(20 * time.Second)
		if one.answered < 10 {
			t.Errorf("a host of the other loop was answered %d times in 20 s", one.answered)
		}
		c.end()
	})
}
