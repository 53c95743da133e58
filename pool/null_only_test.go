package pool

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// callDeadline is when a connection of a careDialer ends because of a Call that is not answered.
const callDeadline = 60 * time.Second

var errOverdue = errors.New("a Call is overdue")

// A careDialer dials endpoints that answer NULL Calls, and other Calls or not.
type careDialer struct {
	*cityDialer
	smu    sync.Mutex
	ends   map[string]bool // ends the connection at a Call
	silent map[string]bool // does not answer
	calls  map[string]int  // Calls that have come
}

func newCareDialer() *careDialer {
	return &careDialer{
		cityDialer: newCityDialer(),
		ends:       make(map[string]bool), silent: make(map[string]bool), calls: make(map[string]int),
	}
}

func (d *careDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	m, err := d.cityDialer.Dial(ctx, endpoint, affinity, s)
	if err == nil {
		f := m.(*fakeMember)
		f.sent = func(e *Entry) { go d.serve(f, endpoint, e) }
	}
	return m, err
}

// serve does to e, a Call that has come on m, what the server at endpoint does.
func (d *careDialer) serve(m *fakeMember, endpoint string, e *Entry) {
	d.smu.Lock()
	ends, silent := d.ends[endpoint], d.silent[endpoint]
	d.calls[endpoint]++
	d.smu.Unlock()
	switch {
	case silent:
		time.AfterFunc(callDeadline, func() {
			if m.has(e) {
				m.seat.Overdue(callDeadline)
				m.Close(errOverdue)
			}
		})
	case ends && !e.Aside:
		m.Close(io.EOF)
	case m.drop(e):
		e.Answered()
		m.seat.Done(e, m.affinity)
	}
}

func (d *careDialer) set(of map[string]bool, endpoint string, on bool) {
	d.smu.Lock()
	defer d.smu.Unlock()
	of[endpoint] = on
}

func (d *careDialer) came(endpoint string) int {
	d.smu.Lock()
	defer d.smu.Unlock()
	return d.calls[endpoint]
}

// traffic submits a Call each 10 ms for a time.
func traffic(t *testing.T, p *Pool, during time.Duration, change func(*Entry)) {
	t.Helper()
	var f Flow
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		e := &Entry{Flow: &f, Cost: 100, Repeatable: true}
		if change != nil {
			change(e)
		}
		if err := p.Submit(e, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// care starts a pool of d with the endpoints a and b, of which all seats prefer a.
func care(t *testing.T, d *careDialer, o Options) (*Pool, *endpoints.Health, *[]error) {
	t.Helper()
	why := new([]error)
	h := &endpoints.Health{Ejected: func(_ string, _ time.Duration, err error) { *why = append(*why, err) }}
	o.Endpoints, o.Health = []string{"a", "b"}, h
	h.Set(o.Endpoints, true)
	p := startPool(t, o, d, &owner{})
	t.Cleanup(func() {
		p.Close()
		if n := p.outstanding; n > 0 {
			t.Errorf("all connections have ended, and %d Calls have not been given back", n)
		}
	})
	return p, h, why
}

// TestCallsOfTheEnd: a connection of a careDialer that ends gives all of its Calls back, also one for which the pool chose
// it before. A Call that it kept would hold its credit for ever: with as many as there are credits, the pool waits
// behind them, and no Call can try an endpoint out.
func TestCallsOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		d.ends["a"] = true
		p, _, _ := care(t, d, Options{Connections: 1})
		var f Flow
		chosen := func() (Member, *Entry) {
			e := &Entry{Flow: &f, Cost: 100, Repeatable: true}
			p.mu.Lock()
			defer p.mu.Unlock()
			m, _, _, err := p.submit(e, nil, 0, time.Now())
			if err != nil || m == nil {
				t.Fatalf("the connection has no credit for a Call: %v", err)
			}
			return m, e
		}
		m, one := chosen()
		_, two := chosen()
		_, late := chosen()
		m.Dispatch(one, 0)
		m.Dispatch(two, 0)
		synctest.Wait() // m has ended
		m.Dispatch(late, 0)
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := p.outstanding; n > 0 {
			t.Errorf("%d Calls have not been given back", n)
		}
	})
}

// TestNullOnlyEnds: an endpoint that ends each connection at a Call is ejected, is tried with one Call now and then,
// less and less often, and is back when it answers one.
func TestNullOnlyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		d.ends["a"] = true
		p, h, why := care(t, d, Options{Connections: 2})
		wantAt(t, p, "the start", "a", "a")
		traffic(t, p, 2*time.Second, nil)
		wantAt(t, p, "a answers no Calls", "b", "b")
		if len(*why) != 1 || !errors.Is((*why)[0], endpoints.ErrFruitless) || !errors.Is((*why)[0], io.EOF) {
			t.Errorf("ejected because of %v", *why)
		}
		before, dials := d.came("a"), d.count("a")
		for range 60 {
			traffic(t, p, 10*time.Second, nil)
			wantAt(t, p, "a is ejected", "b", "b")
		}
		if n := d.came("a") - before; n < 8 || n > 30 {
			t.Errorf("%d Calls have tried a in 10 minutes", n)
		}
		if n := d.count("a") - dials; n > 30 {
			t.Errorf("%d attempts to connect to a in 10 minutes", n)
		}
		if st := h.Stats()[0]; !st.IsEjected || st.Reason == "" {
			t.Errorf("a is described as %+v", st)
		}
		d.set(d.ends, "a", false)
		traffic(t, p, 2*time.Minute, nil)
		wantAt(t, p, "a answers", "a", "a")
		if st := h.Stats()[0]; st.IsEjected {
			t.Errorf("a answers, and is described as %+v", st)
		}
	})
}

// TestNullOnlySilent: an endpoint that answers no Call is left when the first is overdue, by all pools.
func TestNullOnlySilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		d.silent["a"] = true
		p, h, why := care(t, d, Options{Connections: 2})
		lo := Options{Endpoints: []string{"a", "b"}, Health: h, Connections: 1, KeepEndpoint: true}
		lane := startPool(t, lo, d, &owner{})
		pools := []*Pool{p, lane}
		told := h.Ejected
		h.Ejected = func(e string, wait time.Duration, err error) {
			told(e, wait, err)
			for _, p := range pools {
				p.Renew() // as package proxy does
			}
		}
		traffic(t, p, 50*time.Millisecond, nil)
		wantAt(t, p, "Calls wait", "a", "a")
		time.Sleep(callDeadline + time.Second)
		wantAt(t, p, "a Call is overdue", "b", "b")
		wantAt(t, lane, "a Call of another pool is overdue", "b")
		if len(*why) != 1 || !errors.Is((*why)[0], endpoints.ErrNoAnswer) {
			t.Errorf("ejected because of %v", *why)
		}
		before := d.came("a")
		for range 60 {
			traffic(t, p, 10*time.Second, nil)
			wantAt(t, p, "a is ejected", "b", "b")
		}
		if n := d.came("a") - before; n < 4 || n > 10 {
			t.Errorf("%d Calls have tried a in 10 minutes", n)
		}
		d.set(d.silent, "a", false)
		traffic(t, p, callDeadline+2*time.Minute, nil)
		wantAt(t, p, "a answers", "a", "a")
	})
}

// TestNullOnlyKeeps: a pool that keeps to its endpoint leaves one that ends each connection at a Call, too.
func TestNullOnlyKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		d.ends["a"] = true
		p, _, _ := care(t, d, Options{Connections: 1, KeepEndpoint: true})
		traffic(t, p, 2*time.Second, nil)
		wantAt(t, p, "a answers no Calls", "b")
	})
}

// TestNullCallsProveNothing: NULL Calls of clients count neither for an endpoint nor against it.
func TestNullCallsProveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		d.ends["a"] = true
		p, _, _ := care(t, d, Options{Connections: 1})
		null := false
		traffic(t, p, 5*time.Second, func(e *Entry) {
			null = !null
			e.Aside = null
		})
		wantAt(t, p, "a answers NULL Calls of clients alone", "b")
		p.Close()

		d = newCareDialer()
		p, h, _ := care(t, d, Options{Connections: 1})
		for range 10 {
			traffic(t, p, time.Second, func(e *Entry) { e.Aside = true })
			for _, m := range d.all() {
				m.Close(io.EOF)
			}
		}
		if out, _ := h.Counts(); out > 0 {
			t.Error("an endpoint is ejected that was not asked")
		}
	})
}

// TestIdleIsNotJudged: connections that end without having carried a Call say nothing.
func TestIdleIsNotJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		_, h, _ := care(t, d, Options{Connections: 2})
		for range 20 {
			time.Sleep(10 * time.Second)
			for _, m := range d.all() {
				m.Close(io.EOF)
			}
		}
		synctest.Wait()
		if out, _ := h.Counts(); out > 0 {
			t.Error("an endpoint is ejected that was not asked")
		}
	})
}

// TestAllNullOnly: where all endpoints do the same to a Call, one of them stays, and clients are served
// when it answers other Calls.
func TestAllNullOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, silent := range []bool{false, true} {
			d := newCareDialer()
			bad := d.ends
			if silent {
				bad = d.silent
			}
			bad["a"], bad["b"] = true, true
			p, h, _ := care(t, d, Options{Connections: 2})
			for range 100 {
				traffic(t, p, time.Second, nil)
				time.Sleep(5 * time.Second)
				if out, _ := h.Counts(); out > 1 {
					t.Fatal("no endpoint is left")
				}
			}
			d.set(bad, "a", false)
			d.set(bad, "b", false)
			// The Call that tries a out may have come before, and a is ejected once more when it is overdue. The rest
			// is for the next Call, and for the other connection to follow.
			traffic(t, p, callDeadline+2*time.Minute, nil)
			wantAt(t, p, "both answer", "a", "a")
			p.Close()
		}
	})
}

// TestOneConnectionHangs: an endpoint that answers Calls on another connection stays, of whichever pool that is.
func TestOneConnectionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		p, h, why := care(t, d, Options{Connections: 1})
		hung := newCareDialer()
		hung.silent["a"] = true
		lo := Options{Endpoints: []string{"a", "b"}, Health: h, Connections: 1, KeepEndpoint: true}
		lane := startPool(t, lo, hung, &owner{})
		for range 10 {
			submit(t, lane, &Flow{}, 100, 0)
			traffic(t, p, callDeadline+time.Second, nil)
		}
		hung.set(hung.silent, "a", false)
		hung.set(hung.ends, "a", true)
		for range 10 {
			submit(t, lane, &Flow{}, 100, 0)
			traffic(t, p, 10*time.Second, nil)
		}
		if len(*why) > 0 || hung.came("a") < 20 || hung.count("b") > 0 {
			t.Errorf("ejected because of %v, after %d Calls that were not answered", *why, hung.came("a"))
		}
	})
}

// TestWorkedBefore: an endpoint that has answered Calls is left, too, when it answers no more.
func TestWorkedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, silent := range []bool{false, true} {
			d := newCareDialer()
			bad, within := d.ends, 10*time.Second
			if silent {
				bad, within = d.silent, callDeadline
			}
			p, _, _ := care(t, d, Options{Connections: 2})
			traffic(t, p, 10*time.Second, nil)
			wantAt(t, p, "a answers", "a", "a")
			d.set(bad, "a", true)
			traffic(t, p, within+time.Second, nil)
			wantAt(t, p, "a answers no more", "b", "b")
			p.Close()
		}
	})
}

// TestTryOutTakesHarmless: the Call that tries an endpoint may be sent again and need not keep to a connection. If
// none comes, the connection that waits for it ends.
func TestTryOutTakesHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newCareDialer()
		d.ends["a"] = true
		p, _, _ := care(t, d, Options{Connections: 2})
		traffic(t, p, 2*time.Second, nil)
		wantAt(t, p, "a answers no Calls", "b", "b")
		before := d.came("a")
		for i := range 3 {
			traffic(t, p, 2*time.Minute, func(e *Entry) {
				switch i {
				case 0:
					e.Repeatable = false
				case 1:
					e.Flow = &Flow{Sticky: true}
				case 2:
					e.Cost = largeCost
				}
			})
		}
		if n := d.came("a") - before; n > 0 {
			t.Errorf("%d Calls have tried a that must not", n)
		}
		time.Sleep(time.Second)
		if n := len(open(d, "a")); n > 1 {
			t.Errorf("%d connections wait for a Call, want 1 at most", n)
		}
		for len(open(d, "a")) == 0 {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		d.lose("b", io.EOF)
		time.Sleep(time.Second)
		if got := p.Stats().Usable; got == 0 {
			t.Error("b is lost, and nothing takes its place")
		}
		d.set(d.ends, "a", false)
		traffic(t, p, 10*time.Second, nil)
		if got := at(p); len(got) == 0 || slices.Contains(got, "b") {
			t.Errorf("b is lost and a answers: connections to %v", got)
		}
	})
}

// open returns the connections of d to endpoint that have not ended.
func open(d *careDialer, endpoint string) (all []*fakeMember) {
	d.cityDialer.mu.Lock()
	defer d.cityDialer.mu.Unlock()
	for m, at := range d.up {
		if at == endpoint && m.isOpen() {
			all = append(all, m)
		}
	}
	return all
}
