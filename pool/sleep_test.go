package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
)

// awake returns the indexes of the seats that do not sleep.
func awake(p *Pool) (list []int) {
	for i, s := range p.Stats().Connections {
		if !s.Asleep {
			list = append(list, i)
		}
	}
	return list
}

// answerAll returns the credits of all Calls until none is left, and reports how many there were.
func (d *fakeDialer) answerAll() (n int) {
	for again := true; again; {
		again = false
		synctest.Wait()
		for _, m := range d.all() {
			for _, e := range m.take() {
				e.Answered()
				m.seat.Done(e, m.affinity)
				n++
				again = true
			}
		}
	}
	return n
}

func (d *fakeDialer) dialled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.dials)
}

func (d *fakeDialer) setFail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func wantAwake(t *testing.T, p *Pool, when string, want ...int) {
	t.Helper()
	synctest.Wait()
	if got := awake(p); !slices.Equal(got, want) {
		t.Errorf("%s: the seats %v are awake, want %v", when, got, want)
	}
}

// TestSleep: a pool makes one connection at its start, more when Calls need them, and closes those
// that no Call has used for the idle time.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 32}
		p, _ := newPool(t, Options{Connections: 4, Idle: time.Minute}, d)
		wantAwake(t, p, "at the start", 0)
		var f Flow
		for range fewCalls + 1 {
			submit(t, p, &f, 100, 0)
		}
		wantAwake(t, p, "with few Calls", 0)
		submit(t, p, &f, 100, 0)
		wantAwake(t, p, "with one Call more", 0, 1)
		if e := submit(t, p, &f, 100, 0); on(d, e) != 1 {
			t.Errorf("the next Call goes to seat %d, want the new connection", on(d, e))
		}
		d.answerAll()

		submit(t, p, &f, 100, 0)
		submit(t, p, &Flow{}, 1<<20, 0)
		wantAwake(t, p, "with a large Call on another connection", 0, 1)
		submit(t, p, &Flow{Sticky: true}, 1<<20, 0)
		submit(t, p, &Flow{Sticky: true}, 100, 0)
		wantAwake(t, p, "with large and small Calls", 0, 1, 2)
		d.answerAll()

		time.Sleep(59 * time.Second)
		wantAwake(t, p, "before the idle time", 0, 1, 2)
		time.Sleep(3 * time.Second)
		wantAwake(t, p, "after the idle time", 0)
		if st := p.Stats(); st.Usable != 1 || st.Asleep != 3 || !st.DownSince.IsZero() {
			t.Errorf("%d usable, %d asleep, down since %v", st.Usable, st.Asleep, st.DownSince)
		}
		for _, m := range d.members[1:] {
			if !errors.Is(m.closed, errIdle) || !errors.Is(m.closed, ErrClosed) {
				t.Errorf("closed with %v", m.closed)
			}
		}
		time.Sleep(time.Hour)
		if n := d.dialled(); n != 3 {
			t.Errorf("%d connections were made, want 3", n)
		}
	})
}

// TestSleepOneAtATime: a second seat is not woken while the first that was woken dials, unless there
// is no connection for many Calls, or for long.
func TestSleepOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &blockingDialer{admit: make(chan struct{})}
		p := startPool(t, Options{Connections: 4, Idle: time.Minute}, d, &owner{})
		var f Flow
		for range fewCalls {
			submit(t, p, &f, 100, 0)
		}
		wantAwake(t, p, "without a connection", 0)
		submit(t, p, &f, 100, 0)
		wantAwake(t, p, "with many Calls and no connection", 0, 1)
		time.Sleep(ages.Ageing / 2)
		wantAwake(t, p, "soon after that", 0, 1)
		time.Sleep(2 * ages.Ageing)
		wantAwake(t, p, "without a connection for long", 0, 1, 2)
		d.admit <- struct{}{}
		synctest.Wait()
		for range 20 {
			submit(t, p, &f, 100, 0)
		}
		wantAwake(t, p, "while two dial", 0, 1, 2)
		close(d.admit)
		synctest.Wait()
		for range 40 {
			submit(t, p, &f, 100, 0)
		}
		wantAwake(t, p, "after that", 0, 1, 2, 3)
		d.answerAll()
	})
}

// A blockingDialer lets an attempt succeed for each message of admit.
type blockingDialer struct {
	fakeDialer
	admit chan struct{}
}

func (d *blockingDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	select {
	case <-d.admit:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	d.grant = 8
	d.mu.Unlock()
	return d.fakeDialer.Dial(ctx, endpoint, affinity, s)
}

// TestSleepOwnLoop: the pool wakes a seat of the loop whose Calls need it, and does so for one Call if
// there is a seat. NULL Calls do not need it.
func TestSleepOwnLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 32}
		p, _ := newPool(t, Options{Connections: 6, Loops: 3, Idle: time.Minute}, d)
		var f Flow
		if err := p.Submit(&Entry{Flow: &f, Aside: true}, 2); err != nil {
			t.Fatal(err)
		}
		wantAwake(t, p, "a NULL Call of loop 2", 0)
		submit(t, p, &f, 100, Elsewhere)
		submit(t, p, &f, 100, 0)
		submit(t, p, &f, 100, 3)
		wantAwake(t, p, "Calls of no loop, loop 0, and a loop without a seat", 0)
		submit(t, p, &f, 100, 2)
		wantAwake(t, p, "a Call of loop 2", 0, 2)
		if e := submit(t, p, &f, 100, 2); on(d, e) != 2 {
			t.Errorf("the next is on seat %d", on(d, e))
		}
		for range 9 {
			submit(t, p, &f, 100, 2)
		}
		wantAwake(t, p, "many of them", 0, 2, 5)
		d.answerAll()
	})
}

// TestSleepCredits: every waiting Call gets a connection although no other Call follows it.
func TestSleepCredits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 4}
		p, _ := newPool(t, Options{Connections: 4, Idle: time.Minute}, d)
		var f Flow
		for range 15 {
			submit(t, p, &f, 100, 0)
		}
		wantAwake(t, p, "Calls for four connections", 0, 1, 2, 3)
		if n := p.Stats().Queued; n != 0 {
			t.Errorf("%d Calls wait although there were credits for all", n)
		}
		d.answerAll()
	})
}

// TestNeed: the owner says how many connections stay. One that no Call has used ends at once.
func TestNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p := idlePool(t, Options{Connections: 4, Idle: time.Minute}, d, &owner{})
		p.Need(0)
		if st := p.Stats(); st.Sleeps() {
			t.Error("a pool sleeps before Start")
		}
		p.Start()
		defer p.Close()
		time.Sleep(time.Hour)
		wantAwake(t, p, "nothing is needed")
		if st := p.Stats(); d.dialled() != 0 || !st.DownSince.IsZero() || !st.Sleeps() {
			t.Errorf("%d dials; down since %v, sleeps %v", d.dialled(), st.DownSince, st.Sleeps())
		}
		p.Need(3)
		wantAwake(t, p, "three", 0, 1, 2)
		var f Flow
		submit(t, p, &f, 100, 0)
		d.answerAll()
		p.Need(0)
		wantAwake(t, p, "one was used", 0)
		time.Sleep(62 * time.Second)
		wantAwake(t, p, "after the idle time")
		if st := p.Stats(); !st.DownSince.IsZero() {
			t.Errorf("it counts as down since %v", st.DownSince)
		}

		e := &Entry{Flow: &f, Aside: true}
		if err := p.Submit(e, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if on(d, e) != 0 {
			t.Fatalf("a NULL Call is on seat %d", on(d, e))
		}
		d.answerAll()
		time.Sleep(2 * time.Second)
		wantAwake(t, p, "after a NULL Call")

		submit(t, p, &f, 100, 0)
		d.answerAll()
		time.Sleep(58 * time.Second)
		e = &Entry{Flow: &f, Aside: true}
		if err := p.Submit(e, 0); err != nil {
			t.Fatal(err)
		}
		d.answerAll()
		time.Sleep(4 * time.Second)
		wantAwake(t, p, "a NULL Call does not count")
		p.Need(9)
		wantAwake(t, p, "more than there are", 0, 1, 2, 3)
		p.Close()
		p.Need(1)
	})
}

// TestSleepBorrowed: a probe keeps its connection until it is answered, and no longer.
func TestSleepBorrowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 2, Idle: time.Minute}, d)
		m := d.members[0]
		var e Entry
		if !m.seat.Borrow(m, &e) {
			t.Fatal("no credit")
		}
		p.Need(0)
		time.Sleep(time.Hour)
		wantAwake(t, p, "while the probe is out", 0)
		m.seat.Done(&e, 0)
		time.Sleep(2 * time.Second)
		wantAwake(t, p, "after that")
	})
}

// TestSleepData: a seat that sleeps keeps its Data, which is given back when the seat is removed.
func TestSleepData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards left
		var left []any
		d := &dataDialer{fakeDialer: fakeDialer{grant: 8}, seen: make(map[int][]any)}
		o := Options{Connections: 3, Idle: time.Minute, Discarded: func(s *Seat) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, s.Data)
		}}
		p := startPool(t, o, d, &owner{})
		p.Need(3)
		synctest.Wait()
		p.Need(0)
		wantAwake(t, p, "asleep")
		p.Need(3)
		synctest.Wait()
		for i := range 3 {
			if got := d.seen[i]; len(got) != 2 || got[0] != got[1] {
				t.Errorf("seat %d had the data %v in its attempts, want the same in two", i, got)
			}
		}
		want := []any{d.seen[1][0], d.seen[2][0]}
		p.Need(0)
		synctest.Wait()
		o.Connections = 1
		o.Endpoints = []string{"server:20049"}
		p.Update(complete(o), false)
		synctest.Wait()
		byNumber := func(a, b any) int { return a.(int) - b.(int) }
		slices.SortFunc(left, byNumber)
		slices.SortFunc(want, byNumber)
		if !slices.Equal(left, want) {
			t.Errorf("%v was given back, want %v, which the removed seats had", left, want)
		}
		if n := p.Stats().Retired; n != 0 {
			t.Errorf("%d seats are retired, want none", n)
		}
	})
}

// A dataDialer gives each seat a number as Data, and sees what a seat has at each attempt.
type dataDialer struct {
	fakeDialer
	last int
	seen map[int][]any // by the index of the seat
}

func (d *dataDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	d.mu.Lock()
	if s.Data == nil {
		d.last++
		s.Data = d.last
	}
	d.seen[s.index] = append(d.seen[s.index], s.Data)
	d.mu.Unlock()
	return d.fakeDialer.Dial(ctx, endpoint, affinity, s)
}

// TestSleepSticky: a sticky flow wakes the seat that its hash chooses, and waits for it.
func TestSleepSticky(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 4, Idle: time.Minute, BackoffMin: 100 * time.Millisecond, BackoffMax: 100 * time.Millisecond}, d)
		time.Sleep(time.Hour + ages.Ageing/2) // away from the ends of ages
		submit(t, p, &Flow{}, 100, 0)
		d.answerAll()
		f := &Flow{Hash: 6, Sticky: true}
		e := sticky(t, p, f, 0)
		wantAwake(t, p, "a sticky flow", 0, 2)
		if on(d, e) != 2 {
			t.Errorf("on seat %d, want 2", on(d, e))
		}
		d.answerAll()
		time.Sleep(time.Hour)
		wantAwake(t, p, "later", 0)

		d.setFail(errDown)
		wantAbsent(t, p, d, f)
		for range 10 {
			time.Sleep(50 * time.Second)
			if e := sticky(t, p, f, 0); on(d, e) != 0 {
				t.Fatalf("the next: on seat %d, want 0 at once", on(d, e))
			}
			d.answerAll()
		}
		d.setFail(nil)
		time.Sleep(time.Second)
		if e := sticky(t, p, f, 0); on(d, e) != 2 {
			t.Errorf("on seat %d, want 2, which can connect again", on(d, e))
		}
		d.answerAll()
	})
}

// TestSleepUnreachable: a pool whose server is away goes on trying for the connections that it
// needs, and gives up the others.
func TestSleepUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8, fail: errDown}
		p, ow := newPool(t, Options{Connections: 4, Idle: 10 * time.Second, QueueWait: 30 * time.Second, BackoffMax: time.Second}, d)
		for range 4 {
			submit(t, p, &Flow{}, 100, 0)
		}
		wantAwake(t, p, "Calls wait", 0)
		time.Sleep(29 * time.Second)
		wantAwake(t, p, "Calls wait for long", 0, 1, 2, 3)
		time.Sleep(10 * time.Second)
		if es, _ := ow.list(); len(es) != 4 {
			t.Errorf("%d Calls were given up, want 4", len(es))
		}
		wantAwake(t, p, "no Call waits", 0)
		if p.Stats().DownSince.IsZero() {
			t.Error("the pool does not count as down")
		}
		n := d.dialled()
		time.Sleep(10 * time.Second)
		if d.dialled() <= n {
			t.Error("the connection that is needed is not tried")
		}
		p.Need(0)
		time.Sleep(10 * time.Second)
		n = d.dialled()
		time.Sleep(time.Hour)
		if d.dialled() != n || !p.Stats().DownSince.IsZero() {
			t.Errorf("%d attempts though nothing needs a connection; down since %v", d.dialled()-n, p.Stats().DownSince)
		}
		submit(t, p, &Flow{}, 100, 0)
		if p.Stats().DownSince.IsZero() {
			t.Error("a pool whose Call waits for a connection does not count as down")
		}
		d.setFail(nil)
		time.Sleep(2 * time.Second)
		if d.answerAll() != 1 {
			t.Error("the Call did not go")
		}
	})
}

// TestSleepPriority: the connection that stays is one to the preferred endpoint.
func TestSleepPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := cityPool(t, Options{Connections: 3, Idle: time.Minute, BackoffMin: 10 * time.Millisecond}, true, "a")
		time.Sleep(3 * time.Second)
		if got := at(p); !slices.Equal(got, []string{"b"}) {
			t.Fatalf("connections to %v, want b", got)
		}
		d.set("a", false)
		time.Sleep(5 * time.Minute)
		if got := at(p); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("connections to %v, want a", got)
		}
		// Seat 0 is at b because a was down when it was lost, and seat 1 is at a.
		d.lose("a", errGone)
		time.Sleep(time.Second)
		d.set("a", false)
		p.mu.Lock()
		p.wake(p.seats[1])
		p.seats[1].endpoint = ""
		p.mu.Unlock()
		for range 240 {
			time.Sleep(time.Second)
			if p.Stats().Usable < 1 {
				t.Fatal("no connection stays")
			}
		}
		if got := at(p); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("connections to %v, want a", got)
		}
	})
}

// TestRestPreferred: of two idle connections the one to another endpoint is closed.
func TestRestPreferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := cityPool(t, Options{Connections: 2, Idle: time.Minute}, true)
		p.Need(2)
		synctest.Wait()
		p.mu.Lock()
		p.seats[0].endpoint = "b"
		p.need = 1
		p.rest()
		left := p.seats[1].member
		p.mu.Unlock()
		if left == nil {
			t.Error("the connection to the preferred endpoint was closed")
		}
	})
}

// TestSleepUpdate: Update lets seats sleep, wakes them, replaces the connections of those that are
// awake, and adds and removes seats.
func TestSleepUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 4}, d)
		wantAwake(t, p, "without an idle time", 0, 1, 2, 3)
		o := updated(4, "server:20049")
		o.Idle = time.Minute
		p.Update(o, false)
		time.Sleep(2 * time.Second)
		wantAwake(t, p, "with one", 0)
		p.Need(2)
		synctest.Wait()
		n := d.dialled()
		p.Update(o, true)
		time.Sleep(2 * time.Second)
		wantAwake(t, p, "renewed", 0, 1)
		if d.dialled() != n+2 {
			t.Errorf("%d connections were replaced, want 2", d.dialled()-n)
		}
		o.Connections = 6
		p.Update(o, false)
		wantAwake(t, p, "more seats", 0, 1)
		p.Need(0)
		wantAwake(t, p, "none")
		e := sticky(t, p, &Flow{Sticky: true, Hash: 5}, 0)
		wantAwake(t, p, "a sticky flow", 5)
		if on(d, e) != 5 {
			t.Errorf("on seat %d, want 5", on(d, e))
		}
		d.answerAll()
		p.Need(1)
		wantAwake(t, p, "one connection", 5)
		o.Connections = 2
		p.Update(o, false)
		wantAwake(t, p, "that seat was removed", 0)
		o.Idle = 0
		p.Update(o, false)
		wantAwake(t, p, "without an idle time again", 0, 1)
		if st := p.Stats(); st.Usable != 2 || st.Retired != 0 {
			t.Errorf("%d usable, %d retired", st.Usable, st.Retired)
		}
	})
}

// TestSleepRenew: while the connection that is to replace another one cannot be made, the pool goes on
// trying and keeps the others, and in the end it replaces all.
func TestSleepRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 3, Idle: 2 * time.Second}, d)
		p.Need(3)
		synctest.Wait()
		submit(t, p, &Flow{Sticky: true, Hash: 2}, 100, 0) // these two keep their connections
		submit(t, p, &Flow{Sticky: true, Hash: 1}, 100, 0)
		d.setFail(errDown)
		o := updated(3, "server:20049")
		o.Idle = 2 * time.Second
		p.Update(o, true) // seat 0 is replaced first
		p.Need(1)
		time.Sleep(time.Minute)
		n := d.dialled()
		time.Sleep(time.Minute)
		if st := p.Stats(); st.Usable != 2 || d.dialled() == n {
			t.Errorf("%d connections are left, want 2; %d further attempts", st.Usable, d.dialled()-n)
		}
		d.setFail(nil)
		time.Sleep(time.Minute)
		p.mu.Lock()
		for _, s := range p.seats {
			if s.stale() {
				t.Errorf("seat %d was not replaced", s.index)
			}
		}
		p.mu.Unlock()
		d.answerAll()
		time.Sleep(time.Minute)
		if st := p.Stats(); st.Usable != 1 || st.Asleep != 2 || st.Retired != 0 {
			t.Errorf("%d usable, %d asleep, %d retired at the end", st.Usable, st.Asleep, st.Retired)
		}
	})
}

// TestSleepRenewEnds: a seat that was to replace others does not go on trying when they sleep.
func TestSleepRenewEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 3, Idle: time.Minute}, d)
		p.Need(3)
		synctest.Wait()
		d.setFail(errDown)
		o := updated(3, "server:20049")
		o.Idle = time.Minute
		p.Update(o, true)
		p.Need(0)
		time.Sleep(10 * time.Second)
		n := d.dialled()
		time.Sleep(time.Hour)
		wantAwake(t, p, "nothing needs a connection")
		if d.dialled() != n {
			t.Errorf("%d further attempts", d.dialled()-n)
		}
	})
}

// TestSleepPriming: a connection that waits for its first credits is not closed before it has them.
func TestSleepPriming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{}
		p, _ := newPool(t, Options{Connections: 2, Idle: time.Minute}, d)
		p.Need(0)
		time.Sleep(10 * time.Second)
		wantAwake(t, p, "before the first credits", 0)
		d.all()[0].seat.Granted(8, 0)
		time.Sleep(2 * time.Second)
		wantAwake(t, p, "with them")
	})
}

// TestSleepRetire: the seat that takes the place of a retired one dials, and sleeps in its turn.
func TestSleepRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 2, Idle: time.Minute}, d)
		var f Flow
		submit(t, p, &f, 100, 0)
		m := d.members[0]
		if !m.seat.Retire(m) {
			t.Fatal("not retired")
		}
		wantAwake(t, p, "the next", 0)
		if st := p.Stats(); st.Usable != 1 || st.Retired != 1 {
			t.Errorf("%d usable, %d retired", st.Usable, st.Retired)
		}
		m.end(nil)
		p.Need(0)
		time.Sleep(2 * time.Minute)
		wantAwake(t, p, "idle")
	})
}

// TestSleepModel does what a server, clients and the owner of a pool may do, in random order, and
// checks that no Call is lost, that only idle connections are closed for idleness, and that the pool
// sleeps at the end.
func TestSleepModel(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { sleepModel(t, seed) })
	}
}

func sleepModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 14))
	d := &fakeDialer{grant: 1 + rng.IntN(12)}
	ow := &owner{}
	idle := time.Duration(1+rng.IntN(8)) * time.Second
	o := complete(Options{Connections: 1 + rng.IntN(6), Loops: 1 + rng.IntN(3), Idle: idle, QueueWait: 10 * time.Second, BackoffMax: time.Second})
	p := idlePool(t, o, d, ow)
	defer p.Close()
	flows := make([]Flow, 6)
	for i := range flows {
		flows[i] = Flow{Hash: rng.Uint32(), Sticky: i%3 == 0}
	}
	sent, answered := 0, 0
	if rng.IntN(2) == 0 {
		p.Start()
		defer func() { p.Close() }()
	} else {
		p.Need(rng.IntN(3))
		if err := p.Submit(&Entry{Flow: &flows[1]}, 0); err != nil {
			t.Fatal(err)
		}
		sent++
		p.Start()
	}
	answer := func(all bool) {
		for _, m := range d.all() {
			for _, e := range m.take() {
				if !all && rng.IntN(3) == 0 {
					m.mu.Lock()
					m.got = append(m.got, e)
					m.mu.Unlock()
					continue
				}
				answered++
				m.seat.Done(e, m.affinity)
			}
		}
	}
	for range 400 {
		switch rng.IntN(16) {
		case 0, 1, 2, 3, 4, 5, 6:
			e := &Entry{Flow: &flows[rng.IntN(len(flows))], Cost: 1 << rng.IntN(20), Aside: rng.IntN(8) == 0}
			if err := p.Submit(e, rng.IntN(o.Loops)); err != nil {
				t.Fatal(err)
			}
			sent++
		case 7, 8:
			answer(false)
		case 9:
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		case 10:
			time.Sleep(time.Duration(rng.IntN(15)) * time.Second)
		case 11:
			p.Need(rng.IntN(4))
		case 12:
			synctest.Wait()
			var m *fakeMember
			if all := d.all(); len(all) > 0 {
				m = all[rng.IntN(len(all))]
			}
			if m != nil && m.closed == nil && rng.IntN(2) == 0 {
				m.closed = errLost
				for _, e := range m.end(errLost) {
					if err := p.Requeue(e, 0); err != nil {
						ow.Expired(e, err)
					}
				}
			} else if m != nil && m.closed == nil && len(m.seat.ended) == 0 {
				m.seat.Retire(m)
			}
		case 13:
			d.setFail([]error{nil, errDown}[rng.IntN(2)])
		case 14:
			o.Connections = 1 + rng.IntN(6)
			o.Idle = idle * time.Duration(rng.IntN(2))
			p.Update(o, rng.IntN(2) == 0)
		case 15:
			if p.Hold() {
				p.Resume(0)
			}
		}
		p.mu.Lock()
		asleep, used := 0, 0
		for i, s := range p.seats {
			if s.index != i || s.retired {
				t.Fatalf("seed %d: seat %d of the pool has index %d, retired %v", seed, i, s.index, s.retired)
			}
			if s.asleep {
				asleep++
				if s.member != nil {
					t.Fatalf("seed %d: a seat with a connection sleeps", seed)
				}
			} else if !s.running {
				t.Fatalf("seed %d: a seat that is awake has no goroutine", seed)
			}
			if s.member != nil {
				used += s.inUse
			}
		}
		if asleep != p.asleep || len(p.seats)-asleep < p.required() || used != p.inUse {
			t.Fatalf("seed %d: %d of %d seats sleep, counted as %d, %d required; %d credits in use, counted as %d",
				seed, asleep, len(p.seats), p.asleep, p.required(), p.inUse, used)
		}
		p.mu.Unlock()
	}
	d.setFail(nil)
	o.Idle = idle
	p.Update(o, false)
	for range 30 {
		time.Sleep(time.Second)
		synctest.Wait()
		answer(true)
	}
	es, _ := ow.list()
	if st := p.Stats(); sent != answered+len(es) || st.Queued != 0 {
		t.Errorf("seed %d: of %d Calls %d were answered and %d given up, and %d wait", seed, sent, answered, len(es), st.Queued)
	}
	for _, m := range d.members {
		if errors.Is(m.closed, errIdle) && m.seat.inUse > 0 {
			t.Errorf("seed %d: a connection with Calls was closed", seed)
		}
	}
	p.Need(0)
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if st := p.Stats(); st.Usable != 0 || st.Asleep != len(st.Connections) || !st.DownSince.IsZero() {
		// A retired connection whose Calls were answered ends by itself in a Member that is real.
		t.Errorf("seed %d: at the end %d connections are usable and %d of %d asleep", seed, st.Usable, st.Asleep, len(st.Connections))
	}
	for _, m := range d.members {
		if m.closed == nil && m.seat.retired {
			m.closed = ErrClosed
			m.end(ErrClosed)
		}
	}
}

// testIdle is Options.Idle of pools for which complete is not given any.
var testIdle time.Duration

// TestOnDemand runs the models of this package with connections on demand.
func TestOnDemand(t *testing.T) {
	testIdle = 20 * time.Second
	defer func() { testIdle = 0 }()
	for name, f := range map[string]func(*testing.T){
		"batch is no different":      TestBatchIsNoDifferent,
		"stuck Calls":                TestStuckCalls,
		"stuck Calls of busy hosts":  TestStuckCallsOfBusyHosts,
		"half stuck host":            TestHalfStuckHost,
		"slow for all":               TestSlowForAll,
		"one host alone":             TestOneHostAlone,
		"quick hosts":                TestQuickHosts,
		"newcomer beside lone host":  TestNewcomerBesideLoneHost,
		"stuck in slow start":        TestStuckInSlowStart,
		"fair shares":                TestFairShares,
		"equal flows share equally":  TestEqualFlowsShareEqually,
		"calls expire":               TestCallsExpire,
		"waiting goes on until sent": TestWaitingGoesOnUntilSent,
		"reconnects with backoff":    TestReconnectsWithBackoff,
		"ordered flows":              TestOrderedFlows,
		"quota":                      TestQuota,
	} {
		t.Run(name, f)
	}
}

// TestSleepDoesNotAllocate: a Call of a pool in which a seat sleeps allocates nothing.
func TestSleepDoesNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 8}
		p, _ := newPool(t, Options{Connections: 4, Idle: time.Hour}, d)
		m, f := d.members[0], &Flow{}
		e := &Entry{Flow: f, Cost: 100}
		n := testing.AllocsPerRun(1000, func() {
			if err := p.Submit(e, 0); err != nil {
				t.Fatal(err)
			}
			m.got = m.got[:0]
			m.seat.Done(e, 0)
		})
		if n != 0 || p.Stats().Asleep != 3 {
			t.Errorf("%v allocations; %d seats sleep", n, p.Stats().Asleep)
		}
	})
}
