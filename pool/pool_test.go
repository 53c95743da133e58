package pool

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
)

func TestNeverMoreThanTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, _ := newPool(t, Options{Connections: 2, Loops: 2}, d)
		var f Flow
		for range 10 {
			submit(t, p, &f, 100, 0)
		}
		for i, m := range d.members {
			if n := len(m.got); n != 1 {
				t.Errorf("member %d has %d Calls under a grant of 1", i, n)
			}
		}
		if st := p.Stats(); st.Queued != 8 || st.Outstanding != 2 {
			t.Errorf("Stats = %d queued, %d outstanding; want 8, 2", st.Queued, st.Outstanding)
		}
		d.members[0].seat.Granted(4, 0)
		if n := len(d.members[0].got); n != 4 {
			t.Errorf("after the grant rose to 4: %d Calls", n)
		}
		// The grant falls below the number of outstanding Calls: the pool dispatches none
		// until enough Replies have come. RFC 8166 Section 3.3.1.
		m := d.members[0]
		m.seat.Granted(1, 0)
		got := m.take()
		for i, e := range got {
			m.seat.Done(e, 0)
			if n, want := len(m.got), max(0, i-2); n != want {
				t.Errorf("after %d Replies under a grant of 1: %d new Calls, want %d", i+1, n, want)
			}
		}
	})
}

// TestStarved: the time in which Calls waited for a credit counts, and no other.
func TestStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, _ := newPool(t, Options{Connections: 1, Loops: 1, QueueWait: time.Minute}, d)
		want := func(want time.Duration) {
			t.Helper()
			if got := p.Stats().Starved; got != want {
				t.Errorf("Calls waited for %v, want %v", got, want)
			}
		}
		var f Flow
		m := d.members[0]
		submit(t, p, &f, 100, 0)
		time.Sleep(time.Second)
		want(0)
		submit(t, p, &f, 100, 0)
		submit(t, p, &f, 100, 0)
		time.Sleep(2 * time.Second)
		want(2 * time.Second)
		m.seat.Done(m.take()[0], 0)
		time.Sleep(3 * time.Second)
		want(5 * time.Second)
		m.seat.Done(m.take()[0], 0)
		time.Sleep(4 * time.Second)
		want(5 * time.Second)
	})
}

func TestPrefersOwnLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 2, Loops: 2}, d)
		var f Flow
		for range 5 {
			submit(t, p, &f, 100, 1)
		}
		for _, m := range d.members {
			want := 4
			if m.affinity == 0 {
				want = 1 // the fifth Call uses another loop rather than wait
			}
			if len(m.got) != want {
				t.Errorf("member of loop %d has %d Calls, want %d", m.affinity, len(m.got), want)
			}
		}
	})
}

// TestFairShares: while all flows wait, each is served by octets, however many Calls it has
// queued.
func TestFairShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, _ := newPool(t, Options{Connections: 1, QueueWait: time.Hour}, d)
		hog := &Flow{}
		for range 500 {
			submit(t, p, hog, 1<<20, 0)
		}
		small := make([]*Flow, 10)
		for i := range small {
			small[i] = &Flow{}
			for range 20 {
				submit(t, p, small[i], 200, 0)
			}
		}
		m := d.members[0]
		served := map[*Flow]int{}
		for range 220 {
			for _, e := range m.take() {
				served[e.Flow]++
				m.seat.Done(e, 0)
			}
		}
		for i, f := range small {
			if served[f] != 20 {
				t.Errorf("small flow %d: %d of 20 Calls served while a hog had 500 MiB waiting", i, served[f])
			}
		}
		if served[hog] == 0 {
			t.Error("the hog starved")
		}
	})
}

func TestEqualFlowsShareEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 7}
		p, _ := newPool(t, Options{Connections: 1, QueueWait: time.Hour}, d)
		flows := make([]*Flow, 20)
		for i := range flows {
			flows[i] = &Flow{}
			for range 100 + 10*i {
				submit(t, p, flows[i], 4000, 0)
			}
		}
		m := d.members[0]
		served := map[*Flow]int{}
		// Shares are equal over rounds, in each of which a flow sends quantum: here
		// a few rounds, while even the flow with the least has Calls waiting.
		const rounds, turn = 5, quantum / leastCost
		for n := 0; n < rounds*turn*len(flows); {
			for _, e := range m.take() {
				served[e.Flow]++
				n++
				m.seat.Done(e, 0)
			}
		}
		for i, f := range flows {
			if served[f] < (rounds-1)*turn || served[f] > (rounds+1)*turn {
				t.Errorf("flow %d: %d Calls served, the mean is %d: more than a turn apart", i, served[f], rounds*turn)
			}
		}
	})
}

func TestReconnectsWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{fail: errors.New("no route")}
		p, _ := newPool(t, Options{Connections: 1, BackoffMin: 100 * time.Millisecond, BackoffMax: time.Second}, d)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		d.mu.Lock()
		n := len(d.dials)
		d.fail, d.grant = nil, 1
		var gaps []time.Duration
		for i := 1; i < n; i++ {
			gaps = append(gaps, d.dials[i].Sub(d.dials[i-1]))
		}
		d.mu.Unlock()
		if n < 10 || n > 30 {
			t.Errorf("%d dials in 10 s", n)
		}
		if m := slices.Max(gaps); m > time.Second {
			t.Errorf("a pause of %v, above the longest", m)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := p.Stats(); st.Usable != 1 || !st.DownSince.IsZero() {
			t.Errorf("after the upstream came back: %+v", st)
		}
	})
}

func TestLostConnectionGivesCallsToTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 2, Loops: 1}, d)
		var f Flow
		for range 4 {
			submit(t, p, &f, 100, 0)
		}
		waiting := submit(t, p, &f, 100, 0)
		a, b := d.members[0], d.members[1]
		lost := a.end(errors.New("reset"))
		for _, e := range lost {
			if err := p.Requeue(e, 0); err != nil {
				t.Fatal(err)
			}
		}
		d.grant = 0 // the next connection has no credit
		for _, e := range b.take() {
			b.seat.Done(e, 0)
		}
		got := b.take()
		if len(got) != 2 || slices.Contains(got, waiting) {
			t.Errorf("the other connection got %d Calls; want the two of the lost one, ahead of the one waiting", len(got))
		}
		for _, e := range got {
			b.seat.Done(e, 0)
		}
		if got := b.take(); len(got) != 1 || got[0] != waiting {
			t.Errorf("the waiting Call did not follow")
		}
	})
}

func TestCallsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{fail: errors.New("down")}
		p, o := newPool(t, Options{Connections: 1, QueueWait: 5 * time.Second}, d)
		var f, g Flow
		a := submit(t, p, &f, 100, 0)
		time.Sleep(4 * time.Second)
		b := submit(t, p, &f, 100, 0)
		c := submit(t, p, &g, 100, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, errs := o.list(); len(got) != 1 || got[0] != a || !errors.Is(errs[0], errQueueTimeout) {
			t.Fatalf("after 6 s: expired %v, %v", got, errs)
		}
		p.Forget(&f, errors.New("gone"))
		if got, _ := o.list(); len(got) != 2 || got[1] != b {
			t.Errorf("Forget: expired %v", got)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got, _ := o.list(); len(got) != 3 || got[2] != c {
			t.Errorf("the other flow's Call did not expire")
		}
		if st := p.Stats(); st.Queued != 0 {
			t.Errorf("%d queued in an empty queue", st.Queued)
		}
	})
}

// TestWaitingGoesOnUntilSent: a Call that its connections give back unsent has been waiting
// since it was queued first.
func TestWaitingGoesOnUntilSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, _ := newPool(t, Options{Connections: 1, QueueWait: 10 * time.Second}, d)
		var f Flow
		e := submit(t, p, &f, 100, 0)
		m := d.members[0]
		back := func() error {
			time.Sleep(4 * time.Second)
			if got := m.take(); len(got) != 1 {
				t.Fatalf("%d Calls dispatched", len(got))
			}
			e.Seat().Done(e, 0)
			return p.Requeue(e, 0)
		}
		for i := range 3 {
			if err := back(); err != nil {
				t.Fatalf("given back after %d s: %v", 4*i, err)
			}
		}
		e.Sent()
		if err := back(); err != nil {
			t.Fatalf("given back after it was sent: %v", err)
		}
		for range 2 {
			if err := back(); err != nil {
				t.Fatal(err)
			}
		}
		if err := back(); !errors.Is(err, errQueueTimeout) {
			t.Errorf("given back 12 s after it was queued: %v, want errQueueTimeout", err)
		}
	})
}

func TestHoldAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 1}, d)
		var f Flow
		p.Hold()
		submit(t, p, &f, 1, 0)
		submit(t, p, &f, 1, 0)
		if n := len(d.members[0].got); n != 0 {
			t.Fatalf("%d Calls dispatched while held", n)
		}
		p.Resume(0)
		if n := len(d.members[0].got); n != 2 {
			t.Errorf("%d Calls dispatched after Resume, want 2", n)
		}
		p.Hold()
		for range 3 {
			submit(t, p, &f, 1, 0)
		}
		p.Resume(1)
		if n := len(d.members[0].got); n != 3 {
			t.Errorf("%d Calls dispatched after another loop's Resume, want 3: one, for which there may be no memory", n)
		}
		p.Hold()
		p.Resume(0)
		if n := len(d.members[0].got); n != 5 {
			t.Errorf("%d Calls dispatched, want 5", n)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, o := newPool(t, Options{Connections: 1}, d)
		var f Flow
		submit(t, p, &f, 1, 0)
		submit(t, p, &f, 1, 0)
		p.Close()
		if _, errs := o.list(); len(errs) != 1 || !errors.Is(errs[0], ErrClosed) {
			t.Errorf("the waiting Call ended with %v", errs)
		}
		if !errors.Is(d.members[0].closed, ErrClosed) {
			t.Errorf("the member was closed with %v", d.members[0].closed)
		}
		if err := p.Submit(&Entry{Flow: &f}, 0); !errors.Is(err, ErrClosed) {
			t.Errorf("Submit after Close: %v", err)
		}
	})
}

// TestStaleClosing: a Call that was on its way to the loop of a connection that has ended is
// given back when the seat has its next connection, which does not end for it.
func TestStaleClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 1}, d)
		var f Flow
		e := submit(t, p, &f, 100, Elsewhere) // posted to the loop of the first connection
		first := d.members[0]
		first.seat.Closing(first)
		first.seat.Ended(errors.New("lost"))
		time.Sleep(10 * time.Second) // the seat dials again
		synctest.Wait()
		if n := p.Stats().Usable; n != 1 || len(d.members) != 2 {
			t.Fatalf("%d usable connections after the first was lost, %d dialled", n, len(d.members))
		}
		s := e.Seat()
		s.Closing(first)
		s.Done(e, 0)
		if err := p.Requeue(e, 0); err != nil {
			t.Fatal(err)
		}
		if p.Stats().Usable != 1 {
			t.Error("the pool does not use the second connection, because the first has ended")
		}
		if got := d.members[1].take(); len(got) != 1 || got[0] != e {
			t.Errorf("the second connection got %d Calls, want the one given back", len(got))
		}
		s.Done(e, 0)
	})
}

// TestCloseReachesWhatIsClosing: Close closes a connection that gets no Calls any more and
// has not ended yet, and waits for it.
func TestCloseReachesWhatIsClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 1}, d)
		m := d.members[0]
		m.seat.Closing(m)
		p.Close() // hangs when m is forgotten
		if !errors.Is(m.closed, ErrClosed) {
			t.Errorf("the connection was closed with %v", m.closed)
		}
	})
}

func BenchmarkSubmitDone(b *testing.B) {
	p := idlePool(b, Options{Connections: 4}, nil, nil)
	for _, s := range p.seats {
		s.setMember(&nullMember{}, "", false)
		s.Granted(64, Elsewhere)
	}
	var f Flow
	e := &Entry{Flow: &f, Cost: 200}
	b.ReportAllocs()
	for b.Loop() {
		_ = p.Submit(e, 0)
		e.Seat().Done(e, 0)
	}
}

// BenchmarkSubmitDoneQueued is what a Call costs that waits for its turn among the flows of eight hosts.
func BenchmarkSubmitDoneQueued(b *testing.B) {
	p := idlePool(b, Options{Connections: 1}, nil, nil)
	m := &lineMember{}
	p.seats[0].setMember(m, "", false)
	p.seats[0].Granted(4, Elsewhere)
	for range 8 {
		h := &Host{}
		for range 2 {
			f := &Flow{Host: h}
			for range 4 {
				if err := p.Submit(&Entry{Flow: f, Cost: 200}, 0); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		e := m.line[0]
		m.line = append(m.line[:0], m.line[1:]...)
		e.Answered()
		e.Seat().Done(e, 0)
		_ = p.Submit(e, 0)
	}
}

// A lineMember has its Calls in the order in which they were dispatched.
type lineMember struct {
	nullMember
	line []*Entry
}

func (m *lineMember) Dispatch(e *Entry, _ int) {
	for e != nil {
		m.line = append(m.line, e)
		e = e.Unlink()
	}
}

type nullMember struct{}

func (*nullMember) Dispatch(*Entry, int) {}
func (*nullMember) Affinity() int        { return 0 }
func (*nullMember) Close(error)          {}

func TestSubmitDoesNotAllocate(t *testing.T) {
	p := idlePool(t, Options{Connections: 1}, nil, nil)
	p.seats[0].setMember(&nullMember{}, "", false)
	p.seats[0].Granted(1, Elsewhere)
	var f Flow
	a, b := &Entry{Flow: &f}, &Entry{Flow: &f}
	n := testing.AllocsPerRun(100, func() {
		_ = p.Submit(a, 0)
		_ = p.Submit(b, 0) // queued
		a.Seat().Done(a, 0)
		b.Seat().Done(b, 0)
	})
	if n != 0 {
		t.Errorf("%v allocations for a Call sent at once and one queued", n)
	}
}

// TestLoweredGrant: a connection with more Calls outstanding than it may have, since the server lowered
// the grant, leaves the credits of the others to all hosts.
func TestLoweredGrant(t *testing.T) {
	for _, share := range []int{50, 100} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 32}
			p, _ := newPool(t, Options{Connections: 2, Share: share}, d)
			p.seats[1].Granted(0, 0)
			for range 8 {
				f := Flow{Host: &Host{}}
				for range 4 {
					submit(t, p, &f, 100, 0)
				}
			}
			taken := p.seats[0].inUse
			p.seats[0].Granted(1, 0)
			p.seats[1].Granted(12, 0)
			for range 8 {
				submit(t, p, &Flow{Host: &Host{}}, 100, 0)
			}
			if n := p.seats[1].inUse; n < 8 {
				t.Errorf("with a share of %d %%: %d Calls of 8 hosts are outstanding on a connection with 12 credits, beside one that owes %d", share, n, taken-1)
			}
			if got, want := p.free, 12-p.seats[1].inUse; got != want {
				t.Errorf("%d credits are free, want %d", got, want)
			}
			for len(d.members[0].got)+len(d.members[1].got) > 0 {
				for _, m := range d.members {
					for _, e := range m.take() {
						m.seat.Done(e, 0)
					}
				}
			}
			if p.free != p.credits || p.inUse != 0 {
				t.Errorf("at the end %d credits of %d are free, %d in use", p.free, p.credits, p.inUse)
			}
		})
	}
}

// TestSteer: a Call that a connection cannot carry goes to each of the others once, if they
// have credits.
func TestSteer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 3}, d)
		var f, other Flow
		e := submit(t, p, &f, 100, 0)
		steer := func() bool {
			m := e.Seat().member.(*fakeMember)
			m.got = slices.DeleteFunc(m.got, func(x *Entry) bool { return x == e })
			if e.Seat().Steer(e, 0) {
				return true
			}
			m.got = append(m.got, e)
			return false
		}
		been := map[*Seat]bool{e.Seat(): true}
		for i := range 2 {
			was := e.Seat()
			if !steer() {
				t.Fatalf("after %d connections of 3: no other", i+1)
			}
			if been[e.Seat()] {
				t.Error("steered to a connection that it came from")
			}
			been[e.Seat()] = true
			if n := was.free(); n != 2 {
				t.Errorf("%d credits free where it came from, want 2", n)
			}
		}
		if f.seat != e.Seat() {
			t.Error("the next small Call of the client goes elsewhere")
		}
		if steer() {
			t.Error("steered to a fourth connection of 3")
		}
		if !steer() {
			t.Error("not all may be tried again")
		}
		if st := p.Stats(); st.Outstanding != 1 {
			t.Errorf("%d credits in use, want 1", st.Outstanding)
		}
		// All credits are in use and a Call waits: there is no other connection for e.
		for range 5 {
			submit(t, p, &other, 100, 0)
		}
		waiting := submit(t, p, &other, 100, 0)
		if steer() {
			t.Error("steered to a connection without a credit")
		}
		for _, m := range d.members {
			m.got = slices.DeleteFunc(m.got, func(x *Entry) bool { return x == e })
		}
		e.Seat().Done(e, 0)
		if waiting.Seat() == nil {
			t.Error("the credit given back is not used")
		}
	})
}

// TestSharedMetrics: the pools of one upstream share its metrics.
func TestSharedMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMetrics(metrics.New(), "storage")
		d := &fakeDialer{grant: 3}
		shared, _ := newPool(t, Options{Connections: 2, Loops: 2, Metrics: m}, d)
		pinned, _ := newPool(t, Options{Connections: 1, First: 1, Metrics: m}, d)
		if a := d.members[2].affinity; a != 1 {
			t.Errorf("a connection that is to be on loop 1 is on %d", a)
		}
		var f, g Flow
		submit(t, shared, &f, 100, 0)
		for range 5 {
			submit(t, pinned, &g, 100, 1)
		}
		want := func(granted, used, connections, queued int) {
			t.Helper()
			if g, u := m.sum(func(p *Pool) int { return p.credits }), m.sum(func(p *Pool) int { return p.inUse }); g != granted || u != used {
				t.Errorf("%d credits granted and %d in use, want %d and %d", g, u, granted, used)
			}
			if c, q := m.connections.Value(), m.queued.Value(); int(c) != connections || int(q) != queued {
				t.Errorf("%d connections, %d Calls queued, want %d and %d", c, q, connections, queued)
			}
		}
		want(9, 4, 3, 2)
		pinned.Close()
		pinned.Close() // again, which does nothing
		want(6, 1, 2, 0)
		if n := len(m.pools); n != 1 {
			t.Errorf("%d pools are remembered", n)
		}
	})
}
