package pool

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var errLost = errors.New("lost")

// jain is Jain's index of fairness: 1 when all shares are equal, 1/n when one has
// everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// contend lets flows[i] always have depth[i] Calls of cost[i] waiting or outstanding
// and returns the octets of cost that each had, until the first has had most.
func contend(t *testing.T, p *Pool, d *fakeDialer, flows []*Flow, cost, depth []int, most int) []float64 {
	t.Helper()
	index := map[*Flow]int{}
	for i, f := range flows {
		index[f] = i
		for range depth[i] {
			submit(t, p, f, cost[i], i%len(d.members))
		}
	}
	had := make([]float64, len(flows))
	for had[0] < float64(most) {
		for _, m := range d.members {
			for _, e := range m.take() {
				i := index[e.Flow]
				had[i] += float64(e.cost())
				submit(t, p, e.Flow, cost[i], i%len(d.members))
				e.Answered()
				m.seat.Done(e, m.affinity)
			}
		}
	}
	return had
}

// TestHogSharesByWeight: one client with 64 WRITEs of 1 MiB outstanding and 31 clients with
// small Calls share the octets by weight, however much each wants.
func TestHogSharesByWeight(t *testing.T) {
	for _, weights := range [][]int{{0, 0, 0}, {1, 4, 2}, {4, 1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 8}
			p, _ := newPool(t, Options{Connections: 2, Loops: 2, QueueWait: time.Hour}, d)
			flows, cost, depth := []*Flow{{Weight: weights[0]}}, []int{1<<20 + 200}, []int{64}
			for i := range 31 {
				flows = append(flows, &Flow{Weight: weights[1+i%2]})
				cost = append(cost, 200)
				depth = append(depth, 16*2*max(1, weights[1+i%2]))
			}
			had := contend(t, p, d, flows, cost, depth, 40<<20)
			for i, f := range flows {
				had[i] /= float64(f.weight())
			}
			if j := jain(had); j < 0.95 {
				t.Errorf("weights %v: Jain's index of the shares is %.3f, want 0.95: %.0f", weights, j, had)
			}
		})
	}
}

// TestSmallCallBesideHogs: a host with one small Call at a time, beside 31 hosts with as many Calls of 1 MiB as go, waits no
// longer than two times as long as alone, and while one of their Replies is on the wire. In each step the server answers
// small Calls, and each connection has the time for one long Reply.
func TestSmallCallBesideHogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 32}
		p, _ := newPool(t, Options{Connections: 4, Loops: 2, QueueWait: time.Hour, Share: 50}, d)
		out := map[*fakeMember][]*Entry{}
		small := &Flow{}
		for range 31 {
			hog := &Flow{}
			for range 16 {
				submit(t, p, hog, 1<<20, 0)
			}
		}
		submit(t, p, small, 200, 1)
		var took []int
		for since, step := 0, 1; len(took) < 1000 && step < 20000; step++ {
			for _, m := range d.members {
				out[m] = append(out[m], m.take()...)
			}
			for _, m := range d.members {
				wrote := false // a long Reply
				out[m] = slices.DeleteFunc(out[m], func(e *Entry) bool {
					if e.large() {
						if wrote {
							return false
						}
						wrote = true
					} else {
						took = append(took, step-since)
						since = step
					}
					e.Answered()
					m.seat.Done(e, m.affinity)
					submit(t, p, e.Flow, e.Cost, m.affinity)
					return true
				})
			}
			time.Sleep(simStep)
		}
		slices.Sort(took)
		if len(took) < 1000 || took[990] > 2+1 {
			t.Errorf("%d small Calls in 20,000 steps; of 100, 99 took at most %d steps, want 3", len(took), took[len(took)*99/100])
		}
	})
}

// TestSmallCallsOvertake: the small Calls of a client overtake its large ones, and do not
// starve them.
func TestSmallCallsOvertake(t *testing.T) {
	qs := newQueues(&shared{}, 1, 1)
	q := qs.byLoop[0]
	f := &Flow{}
	for range 3 {
		qs.push(&Entry{Flow: f, Cost: 1 << 20}, 0)
	}
	for range 40 {
		qs.push(&Entry{Flow: f, Cost: 200}, 0)
	}
	var order []int
	for n := 0; q.n > 0; n++ {
		if next(&qs, 0, 0).large() {
			order = append(order, n)
		}
	}
	if len(order) != 3 || order[0] != 16 || order[1] != 33 || order[2] != 42 {
		t.Errorf("the large Calls went out at %v, want 16, 33 and 42", order)
	}
	if q.weight != 0 || q.waits() {
		t.Errorf("left over: %+v", q)
	}
}

// TestServedAside: a Call of a host that is set aside costs its queue no more than one of a host that is
// not. Otherwise the hosts of the queue would wait until all others have had as much.
func TestServedAside(t *testing.T) {
	qs := newQueues(&shared{}, 1, 1)
	q := qs.byLoop[0]
	f := &Flow{}
	for range 2 {
		qs.push(&Entry{Flow: f, Cost: 1 << 20}, 0)
	}
	next(&qs, 0, 0)
	inTurn := q.served
	f.place.leave()
	qs.popOf(f.place)
	if got := q.served - inTurn; got != inTurn || got != 1<<20 {
		t.Errorf("a Call of 1 MiB costs its queue %d, and %d when its host is set aside", inTurn, got)
	}
}

// TestLargeCallsKeepToThemselves: while small and large Calls are outstanding, each kind has
// connections of its own; otherwise the only kind has all of them.
func TestLargeCallsKeepToThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 64}
		p, _ := newPool(t, Options{Connections: 2, Loops: 1}, d)
		byIndex := d.members // they were dialled in any order
		slices.SortFunc(byIndex, func(a, b *fakeMember) int { return a.seat.index - b.seat.index })
		a, b, hog := &Flow{}, &Flow{}, &Flow{}
		used := func(f *Flow, cost, n int) (by [2]int) {
			for range n {
				by[submit(t, p, f, cost, 0).Seat().index]++
			}
			return by
		}
		if by := used(hog, 1<<20, 8); by[0] != 4 || by[1] != 4 {
			t.Errorf("large Calls alone went %v", by)
		}
		byIndex[0].finish(t)
		if by := used(a, 200, 4); by[0] != 4 {
			t.Errorf("small Calls went %v, with large ones on connection 1", by)
		}
		if by := used(hog, 1<<20, 8); by[1] != 8 {
			t.Errorf("large Calls went %v, with small ones on connection 0", by)
		}
		if by := used(b, 200, 4); by[0] != 4 {
			t.Errorf("another client's small Calls went %v", by)
		}
		byIndex[0].finish(t)
		byIndex[1].finish(t)
		a, b = &Flow{}, &Flow{}
		if x, y := used(a, 200, 4), used(b, 200, 4); x[0] != 4 || y[1] != 4 {
			t.Errorf("small Calls alone of two clients went %v and %v", x, y)
		}
		large := used(hog, 1<<20, 8)
		if large[0] > 0 && large[1] > 0 {
			t.Errorf("beside small Calls on both connections large ones went %v", large)
		}
		for _, f := range []*Flow{a, b} {
			if by := used(f, 200, 4); by[0] > 0 && large[0] > 0 || by[1] > 0 && large[1] > 0 {
				t.Errorf("small Calls went %v, and large ones before them %v", by, large)
			}
		}
	})
}

// finish returns the credit of every Call on m.
func (m *fakeMember) finish(t *testing.T) {
	t.Helper()
	for got := m.take(); len(got) > 0; got = m.take() {
		for _, e := range got {
			m.seat.Done(e, m.affinity)
		}
	}
}

// TestReweigh: a weight that changes while its flow waits holds from then on, and the flow
// keeps nothing that a larger weight gave it.
func TestReweigh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 2, Loops: 2, QueueWait: time.Hour}, d)
		flows := []*Flow{{Weight: 100}, {}, {}}
		contend(t, p, d, flows, []int{100 << 10, 100 << 10, 200}, []int{32, 32, 512}, 20<<20)
		for _, weights := range [][]int{{1, 1, 1}, {1, 8, 2}, {5, 1, 1}, {0, 0, 3}} {
			for i, f := range flows {
				p.Reweigh(f, weights[i])
			}
			had := contend(t, p, d, flows, []int{100 << 10, 100 << 10, 200}, []int{1, 1, 1}, 20<<20)
			for i, f := range flows {
				had[i] /= float64(f.weight())
			}
			if j := jain(had); j < 0.99 {
				t.Errorf("weights %v: Jain's index of the shares is %.3f: %.0f", weights, j, had)
			}
		}
		for _, f := range flows {
			p.Forget(f, errLost)
			p.Reweigh(f, 7) // without a waiting Call
		}
		p.Reweigh(&Flow{}, 7) // which never had one
		for i := range p.queue.byLoop {
			if q := p.queue.byLoop[i]; q.weight != 0 || q.n != 0 {
				t.Errorf("left over: %+v", q)
			}
		}
	})
}
