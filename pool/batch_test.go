package pool

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
)

// newBatch returns a batch of loop 0, and how often it was arranged to be flushed.
func newBatch() (b *Batch, arranged *int) {
	arranged = new(int)
	return NewBatch(0, func() { *arranged++ }, nil), arranged
}

// TestBatch: Flush does with Calls and credits what Submit and Done would have done, and nothing
// happens before.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 1}, d)
		m, f := d.members[0], &Flow{}
		b, arranged := newBatch()
		var calls []*Entry
		for range 3 * mostAtOnce {
			calls = append(calls, &Entry{Flow: f, Cost: 100})
			b.Submit(p, calls[len(calls)-1])
		}
		if got := m.take(); len(got) > 0 || p.Stats().Queued > 0 {
			t.Fatalf("before Flush %d Calls were dispatched, and %d wait", len(got), p.Stats().Queued)
		}
		var all []*Entry
		for b.Flush(true); ; b.Flush(true) {
			got := m.take()
			if len(got) == 0 {
				break
			}
			if len(got) > 2 {
				t.Fatalf("%d Calls were dispatched with two credits", len(got))
			}
			for _, e := range got {
				e.Answered()
				b.Done(e)
				if e.Seat() != nil {
					t.Fatal("a Call that is done has a seat")
				}
			}
			all = append(all, got...)
		}
		if !slices.Equal(all, calls) {
			t.Errorf("%d Calls were dispatched, or not in their order, want %d", len(all), len(calls))
		}
		if n := len(calls)/2 + 1; *arranged != n {
			t.Errorf("Flush was arranged %d times, want %d", *arranged, n)
		}
	})
}

// TestBatchIsNoDifferent: Calls go in the same order whether a batch or the caller itself submits
// them and returns their credits.
func TestBatchIsNoDifferent(t *testing.T) {
	order := func(seed uint64, batched bool) (names []int) {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 3}
			p, _ := newPool(t, Options{Connections: 2, Loops: 2}, d)
			slices.SortFunc(d.members, func(a, b *fakeMember) int { return a.seat.index - b.seat.index })
			b, _ := newBatch()
			rng := rand.New(rand.NewPCG(seed, 1))
			flows := make([]Flow, 5)
			for i := range flows {
				flows[i].Weight = 1 + i%2
			}
			name := make(map[*Entry]int)
			for i := range 400 {
				synctest.Wait() // for seats that wake
				if rng.IntN(2) == 0 {
					e := &Entry{Flow: &flows[rng.IntN(len(flows))], Cost: 1 + rng.IntN(64<<10)}
					name[e] = i
					if batched {
						b.Submit(p, e)
						b.Flush(true)
					} else if err := p.Submit(e, 0); err != nil {
						t.Fatal(err)
					}
					continue
				}
				m := d.members[rng.IntN(len(d.members))]
				for _, e := range m.take() {
					names = append(names, name[e])
					if batched {
						b.Done(e)
						b.Flush(true)
					} else {
						e.Seat().Done(e, 0)
					}
				}
			}
		})
		return names
	}
	for seed := range uint64(20) {
		if one, other := order(seed, false), order(seed, true); !slices.Equal(one, other) {
			t.Fatalf("seed %d: the order is %v, and with a batch %v", seed, one, other)
		}
	}
}

// TestRuns: Calls of one flow that a batch submits one behind the other go where each would go by itself, and no more
// of them. Their credits come back in runs, too, and nothing of them stays.
func TestRuns(t *testing.T) {
	for seed := range uint64(10) {
		for _, share := range []int{0, 50} {
			synctest.Test(t, func(t *testing.T) { testRuns(t, rand.New(rand.NewPCG(seed, 1)), share) })
		}
	}
}

func testRuns(t *testing.T, rng *rand.Rand, share int) {
	d := &fakeDialer{grant: 24}
	p, _ := newPool(t, Options{Connections: 2, Loops: 1, Share: share}, d)
	b, _ := newBatch()
	hosts, flows := make([]Host, 3), make([]Flow, 6)
	for i := range flows {
		flows[i].Host = &hosts[i%len(hosts)]
	}
	// predicted is how many Calls behind the first go with it, as run has it.
	predicted := func(calls []*Entry) int {
		e, r := calls[0], p.room()
		p.settle(e.Flow)
		if !p.admits(e.Flow, r) {
			return -1
		}
		s := p.choose(e, 0)
		if s == nil {
			return -1
		}
		var list fifo
		for _, x := range calls[1:] {
			list.push(x)
		}
		n := p.run(s, e, list.head, 0, r)
		for e := list.head; e != nil; {
			e = e.Unlink()
		}
		return n
	}
	var inRuns, alone int
	submit := func(calls []*Entry) {
		var out []outgoing
		p.mu.Lock()
		n, went := predicted(calls), -1 // went do with the first
		for i, e := range calls {
			m, _, _, err := p.submit(e, nil, 0, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if m == nil {
				p.metrics.queued.Add(1)
				continue
			}
			if went == i-1 && m == append(out, outgoing{m, e})[0].m {
				went = i
			}
			out = append(out, outgoing{m, e})
		}
		p.mu.Unlock()
		if n > went {
			t.Fatalf("%d Calls behind the first go with it, and by themselves %d of %d do", n, went, len(calls)-1)
		}
		inRuns, alone = inRuns+max(n, 0), alone+max(went, 0)
		for _, o := range out {
			o.m.Dispatch(o.e, 0)
		}
		p.kick(0)
	}
	back := func(answered int) (some bool) {
		for _, m := range d.members {
			for _, e := range m.take() {
				if rng.IntN(10) < answered {
					e.Answered()
				}
				b.Done(e)
				some = true
			}
		}
		b.Flush(true)
		return some
	}
	for i := range 300 {
		f, cost := &flows[rng.IntN(len(flows))], 200
		var calls []*Entry
		for range 1 + rng.IntN(40) {
			if rng.IntN(30) == 0 {
				cost = largeCost
			}
			if rng.IntN(30) == 0 {
				f = &flows[rng.IntN(len(flows))]
			}
			calls = append(calls, &Entry{Flow: f, Cost: cost, Aside: rng.IntN(30) == 0})
		}
		submit(calls)
		if i%2 == 0 {
			back(8)
		}
		if i%7 == 0 {
			for back(8) {
			}
		}
		if i%20 == 0 {
			time.Sleep(ages.Ageing)
		}
	}
	for back(10) {
	}
	if inRuns < alone/3 {
		t.Errorf("%d Calls go in runs, of %d that might", inRuns, alone)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range hosts {
		if h := &hosts[i]; h.held != 0 || h.unproven != 0 || h.ages.Young(p.age) != 0 || h.waiting != 0 {
			t.Errorf("of host %d stays %+v", i, h)
		}
	}
	if p.inUse != 0 || p.outstanding != 0 || p.unproven != 0 || p.ages.Young(p.age) != 0 || len(p.holders) != 0 {
		t.Errorf("%d credits in use, %d Calls, %d unproven, %d holders stay", p.inUse, p.outstanding, p.unproven, len(p.holders))
	}
}

// TestBatchRefused: the owner gets the Calls that a pool does not take, and those of a client that
// has gone.
func TestBatchRefused(t *testing.T) {
	errGone := errors.New("gone")
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, ow := newPool(t, Options{Connections: 1, QueueLimit: 1}, d)
		b, _ := newBatch()
		gone, stays := &Flow{}, &Flow{}
		b.Submit(p, &Entry{Flow: gone})
		b.Submit(p, &Entry{Flow: stays})
		b.Forget(p, gone, errGone)
		for range 3 {
			b.Submit(p, &Entry{Flow: stays})
		}
		b.Flush(true)
		if got := d.members[0].take(); len(got) != 1 || got[0].Flow != stays {
			t.Errorf("%d Calls were dispatched, want one", len(got))
		}
		if _, errs := ow.list(); !slices.Equal(errs, []error{errGone, errQueueFull, errQueueFull}) {
			t.Errorf("refused: %v", errs)
		}
		p.Close()
		b.Submit(p, &Entry{Flow: stays})
		b.Flush(true)
		if _, errs := ow.list(); len(errs) != 5 || !errors.Is(errs[4], ErrClosed) {
			t.Errorf("refused: %v, want the one that waited and the last because the pool is closed", errs)
		}
	})
}

// TestBatchFlushCollects: what dispatching collects goes in the same Flush.
func TestBatchFlushCollects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other := &fakeDialer{grant: 1}, &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 1}, d)
		o, _ := newPool(t, Options{Connections: 1}, other)
		b, arranged := newBatch()
		f, g := &Flow{}, &Flow{}
		left := 3
		d.members[0].sent = func(e *Entry) {
			d.members[0].take()
			b.Done(e)
			b.Submit(o, &Entry{Flow: g})
			if left--; left > 0 {
				b.Submit(p, &Entry{Flow: f})
			}
		}
		b.Submit(p, &Entry{Flow: f})
		b.Flush(true)
		if n := len(other.members[0].take()); n != 3 || left != 0 || *arranged != 1 {
			t.Errorf("%d Calls to the other pool, %d left, arranged %d times; want 3, 0 and once", n, left, *arranged)
		}
	})
}

// TestBatchFirstReply: the first Reply of a host shows that the host may have more than it has.
// So its other Calls go in the same Flush, also when the pass brings so many Calls that the batch
// takes the lock of the pool several times.
func TestBatchFirstReply(t *testing.T) {
	for _, more := range []int{0, 1, mostAtOnce, 2 * mostAtOnce} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 64}
			p, _ := newPool(t, Options{Connections: 1, Share: 50}, d)
			m := d.members[0]
			hangs, waits := &Flow{Host: &Host{}}, &Flow{Host: &Host{}}
			for range 40 {
				submit(t, p, hangs, 200, 0)
			}
			var calls []*Entry
			for range 40 {
				calls = append(calls, submit(t, p, waits, 200, 0))
			}
			time.Sleep(2500 * time.Millisecond)
			synctest.Wait()
			if !hangs.Host.aside.In() || !waits.Host.aside.In() {
				t.Fatal("a host has room in its window")
			}
			n := int(waits.Host.held)
			m.take()
			b, _ := newBatch()
			for _, e := range calls[:n] {
				e.Answered()
				b.Done(e)
			}
			for range more {
				b.Submit(p, &Entry{Flow: hangs, Cost: 200})
			}
			b.Flush(true)
			if got := m.take(); len(got) < n+8 {
				t.Errorf("with %d Calls of another host in the pass, %d were dispatched after %d Replies, want %d", more, len(got), n, n+8)
			}
		})
	}
}
