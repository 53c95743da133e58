package pool

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
)

func sticky(t *testing.T, p *Pool, f *Flow, here int) *Entry {
	t.Helper()
	e := &Entry{Flow: f, Cost: 100}
	if err := p.Submit(e, here); err != nil {
		t.Fatalf("Submit: %v", err)
	}
	return e
}

// on returns the index of the seat that e was dispatched to, or -1.
func on(d *fakeDialer, e *Entry) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.members {
		m.mu.Lock()
		got := slices.Contains(m.got, e)
		m.mu.Unlock()
		if got {
			return m.seat.index
		}
	}
	return -1
}

// answer returns the credits of all Calls of seat i.
func (d *fakeDialer) answer(i int) {
	d.mu.Lock()
	members := slices.Clone(d.members)
	d.mu.Unlock()
	for _, m := range members {
		if m.seat.index == i {
			for _, e := range m.take() {
				m.seat.Done(e, m.affinity)
			}
		}
	}
}

// TestSticky: a sticky Call uses its seat, no matter which loop it comes from and which other
// seats are free. While the seat has no credit the Call waits, and other Calls do not wait
// for it.
func TestSticky(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 4, Loops: 2}, d)
		a, b, c := &Flow{Hash: 6, Sticky: true}, &Flow{Hash: 3, Sticky: true}, &Flow{}
		first, second := sticky(t, p, a, 0), sticky(t, p, a, 1)
		if on(d, first) != 2 || on(d, second) != 2 {
			t.Fatalf("on seats %d and %d, want 2", on(d, first), on(d, second))
		}
		third := sticky(t, p, a, 0)
		if on(d, third) != -1 {
			t.Errorf("without a credit: on seat %d", on(d, third))
		}
		for range 6 {
			if e := submit(t, p, c, 100, 0); on(d, e) < 0 {
				t.Fatal("a Call that may use any seat waits for one that may not")
			}
		}
		// Now no seat has a credit: all Calls wait.
		other, any := sticky(t, p, b, 1), submit(t, p, c, 100, 1)
		if st := p.Stats(); st.Queued != 3 || st.Outstanding != 8 {
			t.Errorf("%d wait and %d are out, want 3 and 8", st.Queued, st.Outstanding)
		}
		d.answer(0)
		if on(d, any) != 0 || on(d, other) != -1 || on(d, third) != -1 {
			t.Errorf("seat 0 is free: on seats %d, %d and %d; want 0 and nowhere", on(d, any), on(d, other), on(d, third))
		}
		d.answer(3)
		d.answer(2)
		if on(d, other) != 3 || on(d, third) != 2 {
			t.Errorf("on seats %d and %d, want 3 and 2", on(d, other), on(d, third))
		}
	})
}

// TestStickyQueued: when Resume or Done frees a credit, the pool also dispatches the Calls
// that wait for one seat.
func TestStickyQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 2}, d)
		p.Hold()
		f := &Flow{Hash: 1, Sticky: true}
		x, y := sticky(t, p, f, 0), submit(t, p, &Flow{}, 100, 0)
		var more []*Entry
		for range 3 {
			more = append(more, sticky(t, p, f, 0))
		}
		p.Resume(0)
		if on(d, x) != 1 || on(d, y) < 0 || on(d, more[2]) != -1 {
			t.Errorf("on seats %d, %d and %d; want 1, any, none", on(d, x), on(d, y), on(d, more[2]))
		}
		for range 3 {
			d.answer(0)
			d.answer(1)
		}
		if st := p.Stats(); st.Queued != 0 || st.Outstanding != 0 {
			t.Errorf("%d wait and %d are out, want none", st.Queued, st.Outstanding)
		}
		// A credit that was returned while the pool was held is used by the Call that waits for it.
		sticky(t, p, f, 0)
		sticky(t, p, f, 0)
		w := sticky(t, p, f, 0)
		p.Hold()
		d.answer(1)
		if on(d, w) != -1 {
			t.Errorf("held: on seat %d", on(d, w))
		}
		p.Resume(0)
		if on(d, w) != 1 {
			t.Errorf("resumed: on seat %d, want 1", on(d, w))
		}
		d.answer(1)
	})
}

// lose ends the connection of seat i.
func (p *Pool) lose(i int) {
	p.mu.Lock()
	m := p.seats[i].member
	p.mu.Unlock()
	m.(*fakeMember).end(errLost)
}

// wantAbsent submits a Call of f, whose seat cannot connect, and fails unless it waits for the time that it may and then
// goes to seat 0.
func wantAbsent(t *testing.T, p *Pool, d *fakeDialer, f *Flow) {
	t.Helper()
	e := sticky(t, p, f, 0)
	time.Sleep(stickyWait - 100*time.Millisecond)
	if on(d, e) != -1 {
		t.Errorf("before its time: on seat %d", on(d, e))
	}
	time.Sleep(1200 * time.Millisecond)
	if on(d, e) != 0 {
		t.Errorf("on seat %d, want 0: the flow's seat does not come back", on(d, e))
	}
}

// TestStickyWaitsForItsConnection: a sticky Call waits while its seat has lost its
// connection, but not for ever.
func TestStickyWaitsForItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 2, BackoffMin: time.Second, BackoffMax: time.Second, QueueWait: time.Minute}, d)
		f := &Flow{Hash: 1, Sticky: true}
		p.lose(1)
		e := sticky(t, p, f, 0)
		time.Sleep(400 * time.Millisecond)
		if on(d, e) != -1 {
			t.Fatalf("on seat %d, want it to wait", on(d, e))
		}
		time.Sleep(time.Second)
		if on(d, e) != 1 {
			t.Fatalf("on seat %d, want 1, which has a connection", on(d, e))
		}
		d.answer(1)

		d.setFail(errors.New("not now"))
		p.lose(1)
		wantAbsent(t, p, d, f)
		if e := sticky(t, p, f, 0); on(d, e) != 0 {
			t.Errorf("the next: on seat %d, want 0 at once", on(d, e))
		}

		// After a time without any connection, the first that comes up does not get the Calls
		// of another seat, whether the server grants credits before the pool has the connection or later.
		p.lose(0)
		sticky(t, p, f, 0)
		time.Sleep(20 * time.Second)
		for _, early := range []bool{true, false} {
			p.mu.Lock()
			late := p.seats[0]
			p.mu.Unlock()
			m := &fakeMember{seat: late}
			if early {
				late.Granted(2, Elsewhere)
			}
			p.mu.Lock()
			late.setMember(m, "server:20049", false)
			p.mu.Unlock()
			if !early {
				late.Granted(2, Elsewhere)
			}
			p.kick(Elsewhere)
			if len(m.got) != 0 {
				t.Errorf("the first connection after a time without any got a Call of another seat; credits came early: %v", early)
			}
			p.mu.Lock()
			late.clearMember()
			p.mu.Unlock()
			time.Sleep(20 * time.Second)
		}
	})
}

// TestStickyEnds: Calls that wait for one seat expire, are forgotten and are drained as others
// are, and they are not lost when the number of connections changes.
func TestStickyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		reg := metrics.New()
		m := NewMetrics(reg, "storage")
		p, ow := newPool(t, Options{Connections: 4, QueueWait: 8 * time.Second, Metrics: m}, d)
		a, b := &Flow{Hash: 1, Sticky: true}, &Flow{Hash: 1, Sticky: true}
		wait := func() (x, y *Entry) {
			sticky(t, p, a, 0)
			return sticky(t, p, a, 0), sticky(t, p, b, 0)
		}
		x, y := wait()
		p.Forget(a, errLost)
		if es, errs := ow.list(); !slices.Equal(es, []*Entry{x}) || !errors.Is(errs[0], errLost) {
			t.Fatalf("forgotten: %v %v", es, errs)
		}
		time.Sleep(10 * time.Second)
		if es, errs := ow.list(); len(es) != 2 || es[1] != y || !errors.Is(errs[1], errQueueTimeout) {
			t.Fatalf("expired: %v %v", es, errs)
		}
		d.answer(1)

		x, y = wait()
		p.Update(updated(1, "server:20049"), false) // the only seat
		d.answer(0)
		d.answer(0)
		if on(d, x) >= 0 || on(d, y) >= 0 {
			t.Error("answered and still there")
		}
		if st := p.Stats(); st.Queued != 0 {
			t.Errorf("%d wait with one connection", st.Queued)
		}
		p.Update(updated(2, "server:20049"), false)
		synctest.Wait()
		d.answer(1)
		sticky(t, p, a, 0)
		last := sticky(t, p, a, 0)
		if p.Stats().Queued != 1 {
			t.Error("it does not wait")
		}
		p.Close()
		if es, errs := ow.list(); len(es) != 3 || es[2] != last || !errors.Is(errs[2], ErrClosed) {
			t.Errorf("closed: %v %v", es, errs)
		}
		if n := m.queued.Value(); n != 0 || p.queue.n != 0 || p.queue.anySeat != 0 {
			t.Errorf("%d and %d counted as waiting", n, p.queue.n)
		}
	})
}

// TestStickyShares: the flows that wait for one seat have fair shares of it, and so has a
// flow that may use any seat, if only that seat has credits.
func TestStickyShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 2, QueueWait: time.Hour}, d)
		hog, meek, any := &Flow{Hash: 2, Sticky: true}, &Flow{Hash: 4, Sticky: true}, &Flow{}
		served := map[*Flow]int{}
		for range 2000 {
			sticky(t, p, hog, 0)
		}
		for range 40 {
			sticky(t, p, meek, 0)
			submit(t, p, any, 100, 0)
		}
		p.mu.Lock()
		other := p.seats[1].member.(*fakeMember) // answers nothing
		seat := p.seats[0].member.(*fakeMember)
		p.mu.Unlock()
		for n := 0; n < 1500; {
			for _, e := range seat.take() {
				served[e.Flow]++
				n++
				submit(t, p, e.Flow, 100, 0)
				seat.seat.Done(e, seat.affinity)
			}
		}
		for _, f := range []*Flow{hog, meek, any} {
			if n := served[f]; n < 400 || n > 600 {
				t.Errorf("served %d, %d and %d of 1500; want as many each", served[hog], served[meek], served[any])
				break
			}
		}
		if got := len(other.take()); got != 4 {
			t.Errorf("%d Calls on the other seat", got)
		}
	})
}

// TestStickyIsNotSteered: a sticky Call waits for its connection if that cannot carry it now.
func TestStickyIsNotSteered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 2}, d)
		f := &Flow{Hash: 1, Sticky: true}
		e := &Entry{Flow: f, Cost: 100}
		if err := p.Submit(e, 0); err != nil {
			t.Fatal(err)
		}
		if e.Seat().Index() != 1 {
			t.Fatal(e.Seat().Index())
		}
		old := e.Seat()
		if old.Steer(e, 0) {
			t.Error("steered")
		}
		for _, m := range d.members {
			m.take()
		}
		defer func() { e.Seat().Done(e, 0) }()
		if e.Seat().Index() != 1 {
			t.Errorf("a sticky Call goes by seat %d", e.Seat().Index())
		}
	})
}

// TestStickyLoop: the loop of a sticky flow is that of the seat which carries its Calls.
func TestStickyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 5, Loops: 3, First: 1}, d)
		for hash := range uint32(11) {
			e := sticky(t, p, &Flow{Hash: hash, Sticky: true}, 0)
			if got, want := p.StickyLoop(hash), p.seats[on(d, e)].affinity; got != want {
				t.Errorf("hash %d: loop %d, and its Call is sent on loop %d", hash, got, want)
			}
			d.answer(on(d, e))
		}
	})
}

// TestOnlyEnds: a flow that does not need its only seat any more may use every seat, and none that
// is not there any more.
func TestOnlyEnds(t *testing.T) {
	for _, unbind := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 1}
			p, _ := newPool(t, Options{Connections: 2}, d)
			f := &Flow{}
			end := func() {
				f.Follow(&Entry{Flow: f, credit: credit{seat: p.seats[1]}})
				if e := sticky(t, p, f, 0); on(d, e) != 1 {
					t.Fatalf("on seat %d, want the only one, 1", on(d, e))
				}
				if unbind {
					p.Unbind(f)
				}
				f.Follow(nil)
			}
			end()
			if e := sticky(t, p, f, 0); on(d, e) != 0 {
				t.Errorf("on seat %d, want the one with a credit, 0", on(d, e))
			}
			d.answer(0)
			d.answer(1)
			end()
			d.answer(1)
			p.Update(updated(1, "server:20049"), false)
			synctest.Wait()
			if e := sticky(t, p, f, 0); on(d, e) != 0 {
				t.Errorf("on seat %d, want the one that is left, 0", on(d, e))
			}
		})
	}
}

// TestOnlyOfOwnCalls: a flow follows only Calls of its own, and so never comes to a seat of another pool.
func TestOnlyOfOwnCalls(t *testing.T) {
	f, other := &Flow{}, &Flow{}
	defer func() {
		if recover() == nil || f.only != nil {
			t.Error("a flow follows a Call of another one")
		}
	}()
	f.Follow(&Entry{Flow: other, credit: credit{seat: &Seat{}}})
}
