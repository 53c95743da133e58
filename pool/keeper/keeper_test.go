package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

var (
	errDown = errors.New("refused")
	errLost = errors.New("lost")
)

// A world is the endpoints of the seats of a test, and what the seats were told.
type world struct {
	t     *testing.T
	wg    sync.WaitGroup
	ctx   context.Context
	stop  context.CancelFunc
	start time.Time

	mu      sync.Mutex
	o       Settings
	down    map[string]bool
	mute    map[string]bool
	stays   bool // Replace fails
	triesIt bool // TriesOut
	called  bool // a Call has come for the one that tries its endpoint
	told    []string
	pauses  []time.Duration
	seats   []*fakeSeat
}

func newWorld(t *testing.T, addrs ...string) *world {
	h := &endpoints.Health{}
	h.Set(addrs, true)
	w := &world{t: t, start: time.Now(), down: map[string]bool{}, mute: map[string]bool{}}
	w.ctx, w.stop = context.WithCancel(t.Context())
	w.o = Settings{
		BackoffMin: 100 * time.Millisecond, BackoffMax: 2 * time.Second, DialTimeout: 5 * time.Second,
		Health: h, Returns: len(addrs) > 1,
		Failed: func(addr string, err error, retryIn time.Duration) {
			w.mu.Lock()
			w.pauses = append(w.pauses, retryIn)
			w.mu.Unlock()
			w.tell("failed %s: %v", addr, err)
		},
	}
	return w
}

// tell notes an event.
func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprintf(format, args...))
}

// set changes what f changes.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// want fails the test unless these are the events since the last want.
func (w *world) want(told ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.told, told) {
		w.t.Errorf("after %v:\n%q, want\n%q", time.Since(w.start), w.told, told)
	}
	w.told = nil
}

// seat returns a new seat.
func (w *world) seat() *fakeSeat {
	s := &fakeSeat{w: w, ended: make(chan error, 1), answers: make(chan struct{}, 1), goes: true}
	s.k = New(s, s.ended, s.answers, w.wg.Go)
	w.seats = append(w.seats, s)
	return s
}

// run keeps a connection on a seat, which it returns, until the test ends.
func (w *world) run() *fakeSeat {
	s := w.seat()
	w.wg.Go(func() { s.k.Keep(w.ctx) })
	w.t.Cleanup(func() {
		w.stop()
		for _, s := range w.seats {
			s.Close(ErrClosed)
		}
		w.wg.Wait()
	})
	synctest.Wait()
	return s
}

// A fakeSeat is a seat, a candidate, and its connection.
type fakeSeat struct {
	w       *world
	k       *Keeper
	of      *fakeSeat // whose place it is to take
	ended   chan error
	answers chan struct{}

	open, goes bool // guarded by w.mu, as the next
	out        Outcome
}

func (s *fakeSeat) Settings() Settings {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.o
}

func (s *fakeSeat) Goes() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.goes
}

func (s *fakeSeat) Dial(_ context.Context, addr string, improving bool) (Conn, <-chan struct{}, error) {
	s.w.tell("dial %s, better %v", addr, improving)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.down[addr] {
		return nil, nil, errDown
	}
	s.open, s.out = true, Outcome{Missed: len(s.w.o.Health.Stats()) > 1}
	granted := make(chan struct{})
	if !s.w.mute[addr] {
		close(granted)
	}
	return s, granted, nil
}

// Close ends the connection.
func (s *fakeSeat) Close(err error) {
	s.w.mu.Lock()
	open := s.open
	s.open = false
	s.w.mu.Unlock()
	if open {
		s.ended <- err
	}
}

func (s *fakeSeat) Connected(addr string) { s.w.tell("connected %s", addr) }

func (s *fakeSeat) Ended() Outcome {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.of != nil {
		s.w.told = append(s.w.told, "the candidate is over")
	}
	return s.out
}

func (s *fakeSeat) Failed(string, error) {}
func (s *fakeSeat) LeaveMute()           { s.Close(ErrMute) }
func (s *fakeSeat) LeaveNullOnly()       {}

func (s *fakeSeat) Beside() (*Keeper, Candidate, bool) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !s.open {
		return nil, nil, false
	}
	n := s.w.seat()
	n.of = s
	return n.k, n, false
}

func (s *fakeSeat) TriesOut() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.triesIt
}

func (s *fakeSeat) TryOut(addr string) { s.w.tell("try %s out", addr) }

func (s *fakeSeat) Withdraw() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return !s.w.called
}

func (s *fakeSeat) Replace(addr string) (replaced, unwanted bool) {
	s.w.tell("replace by %s", addr)
	s.w.mu.Lock()
	of, stays := s.of, s.w.stays
	if !stays {
		s.of, of.out.Over = nil, true
	}
	s.w.mu.Unlock()
	if stays {
		return false, false
	}
	of.Close(ErrClosed)
	s.w.wg.Go(func() { s.k.Resume(s.w.ctx, addr) })
	return true, false
}

// TestBacksOff: the pauses between attempts grow to the longest, and begin anew after a connection that has lasted.
func TestBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.down["a"] = true
		s := w.run()
		time.Sleep(15 * time.Second)
		w.set(func() {
			if len(w.pauses) < 8 {
				t.Errorf("%d attempts", len(w.pauses))
			}
			for i, d := range w.pauses {
				if most := min(w.o.BackoffMin<<min(i, 10), w.o.BackoffMax); d < most/2 || d > most {
					t.Errorf("pause %d is %v, want %v to %v", i, d, most/2, most)
				}
			}
			w.down["a"], w.pauses = false, nil
		})
		time.Sleep(2*w.o.BackoffMax + w.o.BackoffMax + time.Second)
		s.Close(errLost)
		synctest.Wait()
		w.set(func() {
			if len(w.pauses) != 1 || w.pauses[0] > w.o.BackoffMin {
				t.Errorf("the pauses after a connection that has lasted: %v", w.pauses)
			}
		})
	})
}

// TestNext: what happens after the end of a connection depends on what the seat says has become of it.
func TestNext(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(s *fakeSeat)
		want []string
	}{
		{"lost", func(*fakeSeat) {}, []string{"failed a: lost", "dial a, better false", "connected a"}},
		{"rested", func(s *fakeSeat) { s.out.Rested = true }, []string{"dial a, better false", "connected a"}},
		{"over", func(s *fakeSeat) { s.out.Over = true }, nil},
		{"rested and asleep", func(s *fakeSeat) { s.out.Rested, s.goes = true, false }, nil},
		{"lost and asleep", func(s *fakeSeat) { s.goes = false }, []string{"failed a: lost"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "a")
				s := w.run()
				w.want("dial a, better false", "connected a")
				w.set(func() { tt.set(s) })
				s.Close(errLost)
				time.Sleep(w.o.BackoffMin)
				w.want(tt.want...)
			})
		})
	}
}

// TestReturns: a seat goes back to the endpoint that it prefers as soon as that is up, by a candidate. If the candidate
// comes too late, its connection is closed.
func TestReturns(t *testing.T) {
	for _, stays := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			w.down["a"] = true
			w.run()
			time.Sleep(time.Minute)
			w.set(func() { w.down["a"], w.stays, w.told = false, stays, nil })
			time.Sleep(90 * time.Second) // the longest ejection
			want := []string{"dial a, better false", "replace by a"}
			if stays {
				want = append(want, "the candidate is over")
			}
			w.set(func() { w.told = w.told[:min(len(w.told), len(want))] })
			w.want(want...)
			w.set(func() {
				for i, s := range w.seats {
					if last := i == len(w.seats)-1; s.open != (!stays && last || stays && i == 0) {
						t.Errorf("stays %v: seat %d of %d has a connection: %v", stays, i, len(w.seats), s.open)
					}
				}
			})
		})
	}
}

// TestImproves: an attempt at a better connection that fails is no failure of the endpoint, and is made again.
func TestImproves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.o.Improve = func() time.Duration { return 10 * time.Second }
		w.run()
		w.want("dial a, better false", "connected a")
		w.set(func() { w.down["a"] = true })
		for range 3 { // two failures would eject it
			time.Sleep(10 * time.Second)
			w.want("dial a, better true", "the candidate is over")
		}
		w.set(func() { w.down["a"] = false })
		if st := w.o.Health.Stats()[0]; st.IsEjected || st.Ejections > 0 {
			t.Errorf("%+v", st)
		}
		time.Sleep(10 * time.Second)
		w.want("dial a, better true", "replace by a")
	})
}

// TestMute: a seat leaves a connection on which the server does not answer.
func TestMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.mute["a"] = true
		w.run()
		time.Sleep(w.o.DialTimeout + w.o.BackoffMin)
		w.want("dial a, better false", "connected a", "failed a: "+ErrMute.Error(), "dial b, better false", "connected b")
	})
}

// TestTriesOut: a Call has to try an endpoint that answered NULL Calls alone, on the connection of a candidate.
func TestTriesOut(t *testing.T) {
	for _, tt := range []struct {
		name string
		does func(w *world, n *fakeSeat) // to the candidate that waits for a Call
		want []string
	}{
		{"answers", func(_ *world, n *fakeSeat) { n.answers <- struct{}{} }, []string{"replace by a"}},
		{"no call", func(*world, *fakeSeat) { time.Sleep(tryOutWait) }, []string{"the candidate is over"}},
		{"call without an answer", func(w *world, _ *fakeSeat) {
			w.set(func() { w.called = true })
			time.Sleep(2 * tryOutWait)
		}, nil},
		{"call, and the end", func(w *world, n *fakeSeat) {
			w.set(func() { w.called, n.out.Fruitless = true, true })
			n.Close(errLost)
		}, []string{"the candidate is over"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "a", "b")
				w.o.Health.Overdue("a", time.Hour) // ejects it, as it has answered no Call
				w.run()
				w.want("dial b, better false", "connected b")
				w.set(func() { w.triesIt = true })
				time.Sleep(3 * time.Second)
				w.want() // another one tries it out
				w.set(func() { w.triesIt = false })
				time.Sleep(10 * time.Second)
				w.want("dial a, better false", "try a out")
				before := w.o.Health.Stats()[0].Ejections
				var last *fakeSeat
				w.set(func() { last = w.seats[len(w.seats)-1] })
				tt.does(w, last)
				synctest.Wait()
				w.set(func() { w.told = w.told[:min(len(w.told), max(1, len(tt.want)))] })
				w.want(tt.want...)
				if again := w.o.Health.Stats()[0].Ejections > before; again != (tt.name == "call, and the end") {
					t.Errorf("the endpoint was ejected again: %v", again)
				}
			})
		})
	}
}
