package pool

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// TestRetire: a retired connection finishes its Calls, another connection gets the Calls that
// come, within its own grant, and no Call is counted twice.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		var discarded []*Seat
		p, _ := newPool(t, Options{Connections: 1, Discarded: func(s *Seat) { discarded = append(discarded, s) }}, d)
		var f Flow
		a, b := submit(t, p, &f, 100, 0), submit(t, p, &f, 100, 0)
		waiting := submit(t, p, &f, 100, 0)
		old := d.members[0]
		if !old.seat.Retire(old) {
			t.Fatal("Retire refused a seated connection")
		}
		if old.seat.Retire(old) {
			t.Error("retired twice")
		}
		synctest.Wait()
		if len(d.members) != 2 {
			t.Fatalf("%d connections were made, want another one at once", len(d.members))
		}
		fresh := d.members[1]
		if len(fresh.got) != 1 || fresh.got[0] != waiting {
			t.Errorf("the new connection has %d Calls, want the one that waited", len(fresh.got))
		}
		if st := p.Stats(); st.Usable != 1 || st.Outstanding != 1 || st.Granted != 2 || st.Retired != 1 {
			t.Errorf("Stats = %+v, want the new connection's numbers and 1 retired", st)
		}
		old.take()
		old.seat.Done(a, 0)
		if len(old.got) != 0 || old.closed != nil {
			t.Error("a retired connection was given a Call, or closed")
		}
		old.seat.Done(b, 0)
		old.seat.Ended(nil)
		synctest.Wait()
		time.Sleep(time.Minute)
		if n := len(d.members); n != 2 {
			t.Errorf("%d connections: the end of a retired one made another", n)
		}
		if len(discarded) != 1 || discarded[0] != old.seat {
			t.Errorf("Discarded was called for %d seats, want the retired one", len(discarded))
		}
		if st := p.Stats(); st.Retired != 0 || st.Usable != 1 {
			t.Errorf("Stats = %+v at the end", st)
		}
		fresh.take()
		fresh.seat.Done(waiting, 0)
	})
}

// TestRetireAndClose: Close closes a retired connection too, and after it Retire does
// nothing.
func TestRetireAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 2}
		p, _ := newPool(t, Options{Connections: 1}, d)
		var f Flow
		submit(t, p, &f, 100, 0)
		old := d.members[0]
		old.seat.Retire(old)
		synctest.Wait()
		p.Close()
		for i, m := range d.members {
			if !errors.Is(m.closed, ErrClosed) {
				t.Errorf("connection %d was closed with %v", i, m.closed)
			}
		}
		if d.members[1].seat.Retire(d.members[1]) {
			t.Error("Retire after Close")
		}
	})
}

// TestBorrow: Borrow takes a credit only while no Call waits for one.
func TestBorrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDialer{grant: 1}
		p, _ := newPool(t, Options{Connections: 1}, d)
		m := d.members[0]
		var probe, other Entry
		if m.seat.Borrow(&fakeMember{}, &probe) {
			t.Error("a credit of a connection that is not seated")
		}
		if !m.seat.Borrow(m, &probe) || m.seat.Borrow(m, &other) {
			t.Error("want one credit, once")
		}
		var f Flow
		e := submit(t, p, &f, 100, 0)
		if len(m.got) != 0 {
			t.Error("a Call was dispatched without a credit")
		}
		m.seat.Done(&probe, 0)
		if len(m.got) != 1 {
			t.Error("no Call got the credit that was returned")
		}
		submit(t, p, &f, 100, 0)
		m.seat.Granted(0, 0)
		if m.seat.Borrow(m, &probe) {
			t.Error("a credit that a Call waits for")
		}
		m.take()
		m.seat.Done(e, 0)
	})
}

// An improvingDialer makes a better connection only while it may.
type improvingDialer struct {
	fakeDialer
	may   bool
	again []time.Time
}

func (d *improvingDialer) Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error) {
	if s.Improving() {
		d.mu.Lock()
		d.again = append(d.again, time.Now())
		may := d.may
		d.mu.Unlock()
		if !may {
			return nil, errLost
		}
		s.Data = "home"
	}
	return d.fakeDialer.Dial(ctx, endpoint, affinity, s)
}

// TestImprove: a seat tries for a better connection at the times that Improve returns, while
// it has one. When it gets a better one, the first ends after its last Call. A failed attempt
// is not a failure of the endpoint.
func TestImprove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &improvingDialer{fakeDialer: fakeDialer{grant: 4}}
		var discarded []*Seat
		o := Options{
			Endpoints: []string{"a:1", "b:1"}, Connections: 1,
			Improve: func(s *Seat) time.Duration {
				if s.Data == "home" {
					return 0
				}
				return 3 * time.Second
			},
			Discarded: func(s *Seat) { discarded = append(discarded, s) },
			Failed:    func(string, error, time.Duration) { t.Error("a failure") },
		}
		p := startPool(t, o, d, &owner{})
		old := d.members[0]
		e := submit(t, p, &Flow{}, 100, 0)
		began := time.Now()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(d.again); n != 3 || d.again[0].Sub(began) != 3*time.Second {
			t.Errorf("%d attempts in 10 s, want one each 3 s", n)
		}
		if len(discarded) != 3 || slices.Contains(discarded, old.seat) {
			t.Errorf("Discarded was called for %d seats, want one for each attempt", len(discarded))
		}
		if out, _ := p.opts.Health.Counts(); out != 0 || p.Stats().Usable != 1 {
			t.Errorf("%d endpoints are ejected, %d connections usable", out, p.Stats().Usable)
		}
		d.mu.Lock()
		d.may = true
		d.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(d.members) != 2 {
			t.Fatalf("%d connections made, want 2", len(d.members))
		}
		if next := submit(t, p, &Flow{}, 100, 0); on(&d.fakeDialer, next) < 0 || !slices.Contains(d.members[1].got, next) {
			t.Error("a Call does not go by the new connection")
		}
		if old.closed != nil {
			t.Error("the old connection ends before its last Call")
		}
		old.take()
		old.seat.Done(e, 0)
		synctest.Wait()
		if !errors.Is(old.closed, errRetired) {
			t.Errorf("the old connection, which has no Calls: %v, want %v", old.closed, errRetired)
		}
		if len(discarded) != 4 || discarded[3] != old.seat {
			t.Errorf("Discarded was called for %d seats, want 4", len(discarded))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(d.again); n != 4 {
			t.Errorf("%d attempts in all, want 4: the seat has the better connection", n)
		}
	})
}

// TestRetiredHoldsNobodyUp: the Calls of a retired connection do not keep its successor from
// sending, whether the slow start is over or not.
func TestRetiredHoldsNobodyUp(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replies int // before the connection is retired
		want    int // Calls that its successor gets: the last one, and those that waited
	}{
		{"slow start", 0, 1 + 20 - 16},
		{"slow start over", 1100, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &fakeDialer{grant: 128}
				p, ow := newPool(t, Options{Connections: 1, SlowStart: slowstart.New(16, 1<<30)}, d)
				var f Flow
				m := d.members[0]
				answer(t, p, m, &f, tt.replies)
				for range 20 { // which the server drops
					submit(t, p, &f, 100, 0)
				}
				if !m.seat.Retire(m) {
					t.Fatal("Retire")
				}
				synctest.Wait()
				fresh := d.members[1]
				submit(t, p, &f, 100, 0)
				time.Sleep(29 * time.Second)
				synctest.Wait()
				if n := len(fresh.got); n != tt.want {
					t.Errorf("the new connection has %d Calls 29 s later, want %d; slow start %+v", n, tt.want, p.slowStart)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if n, errs := ow.list(); len(n) > 0 {
					t.Errorf("%d Calls expired: %v", len(n), errs)
				}
			})
		})
	}
}

// answer sends n Calls of f by m, one after the other, and answers them.
func answer(t *testing.T, p *Pool, m *fakeMember, f *Flow, n int) {
	t.Helper()
	for range n {
		e := submit(t, p, f, 100, 0)
		m.take()
		m.seat.Done(e, 0)
		replied(p.slowStart)
	}
}

// TestReplacedHoldsNobodyUp: the Calls of a connection that a better one has replaced do not
// keep that one from sending.
func TestReplacedHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &improvingDialer{fakeDialer: fakeDialer{grant: 128}, may: true}
		o := Options{Endpoints: []string{"a:1"}, Connections: 1, SlowStart: slowstart.New(16, 1<<30), Improve: func(s *Seat) time.Duration {
			if s.Data == "home" {
				return 0
			}
			return 3 * time.Second
		}}
		p := startPool(t, o, d, &owner{})
		var f Flow
		m := d.members[0]
		answer(t, p, m, &f, 1100)
		for range 20 { // which take long
			submit(t, p, &f, 100, 0)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if len(d.members) != 2 {
			t.Fatal(len(d.members))
		}
		submit(t, p, &f, 100, 0)
		synctest.Wait()
		if n := len(d.members[1].got); n != 1 {
			t.Errorf("the better connection has %d Calls, want 1; slow start %+v", n, p.slowStart)
		}
	})
}
