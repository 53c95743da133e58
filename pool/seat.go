package pool

import (
	"context"
	"slices"
	"time"
)

// A Seat is the place of one connection in a pool: it outlives the connections
// that sit on it.
type Seat struct {
	// Data is the Dialer's, for what outlives a connection. It belongs to the goroutine
	// that calls Dial, which is always the same.
	Data any

	pool     *Pool // constant, as are index and affinity
	index    int
	affinity int
	ended    chan error // one deep; carries the end of the present member

	// Guarded by pool.mu.
	member   Member // the sitting one while it takes Calls, else nil
	sitting  Member // from Dial until its end has been seen, so that Close finds it
	grant    int
	inUse    int
	bulk     int // of these, large Calls
	endpoint string
	since    time.Time
	lastErr  error
	retired  bool // another seat has its place, or it has none
	renewed  bool // and its connection is to be closed after its last Call
	age      int  // Pool.age when its connection was made
}

// Index is the seat's number in its pool.
func (s *Seat) Index() int { return s.index }

// Pool is the seat's pool.
func (s *Seat) Pool() *Pool { return s.pool }

// free is how many more Calls the seat takes now. pool.mu is held.
func (s *Seat) free() int {
	if s.member == nil {
		return 0
	}
	return s.grant - s.inUse
}

// take uses one credit for e. pool.mu is held and free() > 0.
func (s *Seat) take(e *Entry) Member {
	s.inUse++
	s.pool.out++
	e.seat = s
	if e.bulk = e.large(); e.bulk {
		s.bulk++
	}
	return s.member
}

// give takes e's credit back. pool.mu is held.
func (s *Seat) give(e *Entry) {
	s.inUse--
	s.pool.out--
	if e.bulk {
		s.bulk--
	}
	e.seat, e.bulk = nil, false
}

// Granted sets how many Calls may be outstanding on the seat's connection, and
// dispatches waiting Calls that now may go. here is the caller's loop.
func (s *Seat) Granted(n, here int) {
	p := s.pool
	p.mu.Lock()
	s.grant = n
	p.mu.Unlock()
	s.pull(here)
}

// Done returns e's credit and dispatches the next waiting Call, if any. here is
// the caller's loop, preferably the connection's own, where that Call goes out
// at once.
func (s *Seat) Done(e *Entry, here int) {
	p := s.pool
	p.mu.Lock()
	if e.seat != s {
		p.mu.Unlock()
		panic("BUG: pool: credit returned to a seat that did not give it")
	}
	s.give(e)
	last := s.last()
	ramping := p.window < rampEnd
	if ramping && s.member != nil {
		p.window++
	}
	m, next := p.next(s)
	p.mu.Unlock()
	last.end()
	if next != nil {
		p.dispatch(m, next, here)
	}
	if ramping {
		p.kick(here) // there may be room for two, or for none on this connection
	}
}

// Steer dispatches e, which the connection on this seat cannot carry though others
// may, on another one that has a credit free and has not refused e since it was
// queued, and returns e's credit here. When there is none it reports false and does
// nothing; after that all may be tried again. here is the caller's loop.
func (s *Seat) Steer(e *Entry, here int) bool {
	p := s.pool
	p.mu.Lock()
	if e.seat != s {
		p.mu.Unlock()
		panic("BUG: pool: a Call is steered from a seat that it does not have")
	}
	e.refused |= s.bit()
	var best *Seat
	if !p.held && !p.closed {
		best = p.pickBut(e.refused, here, e.large())
	}
	if best == nil {
		e.refused = 0
		p.mu.Unlock()
		return false
	}
	s.give(e)
	last := s.last()
	m := best.take(e)
	if !e.large() {
		// The client whose XIDs met this one's may go on to the next as this one does.
		e.Flow.seat = best
	}
	other, next := p.next(s)
	p.mu.Unlock()
	last.end()
	m.Dispatch(e, here)
	if next != nil {
		p.dispatch(other, next, here)
	}
	return true
}

// bit stands for the seat in Entry.refused. Of a pool of more than 64 seats some
// share one: fewer are tried then.
func (s *Seat) bit() uint64 { return 1 << (s.index % 64) }

func (s *Seat) pull(here int) {
	p := s.pool
	for {
		p.mu.Lock()
		m, e := p.next(s)
		p.mu.Unlock()
		if e == nil {
			return
		}
		p.dispatch(m, e, here)
	}
}

// Closing takes connection m out of the ledger: nothing more is dispatched to it.
// It is called as soon as it is known that m will end, before m's Calls end, so
// that Calls given back go elsewhere. A Call may be given back late, when another
// connection has the seat already: then Closing does nothing.
func (s *Seat) Closing(m Member) {
	p := s.pool
	p.mu.Lock()
	if s.member == m {
		s.vacate()
	}
	p.mu.Unlock()
}

// Retire takes connection m out of the ledger as Closing does, though it has not
// begun to end, and puts another seat in the place of this one, which makes a
// connection of its own at once: the Calls that m has go on, and others need not wait
// for them. m ends itself when it has none. It reports false, and does nothing, when m
// is not seated any more. Any goroutine.
func (s *Seat) Retire(m Member) bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || s.member == nil || s.member != m {
		return false
	}
	s.yield()
	return true
}

// yield puts another seat in the place of s, which has a connection. p.mu is held.
func (s *Seat) yield() *Seat {
	p := s.pool
	s.vacate()
	s.retired = true
	n := p.newSeat(s.index)
	p.seats[slices.Index(p.seats, s)] = n
	p.retired = append(p.retired, s)
	p.seat(n)
	return n
}

// leave ends the time of a seat that was retired, and reports whether it was.
func (s *Seat) leave() bool {
	p := s.pool
	p.mu.Lock()
	retired, left := s.retired, p.opts.Left
	p.retired = slices.DeleteFunc(p.retired, func(o *Seat) bool { return o == s })
	p.mu.Unlock()
	if retired && left != nil {
		left(s)
	}
	return retired
}

// Borrow takes a credit of connection m for e, which is no client's Call and waits in
// no queue, if there is one that no Call waits for. Done gives it back.
func (s *Seat) Borrow(m Member, e *Entry) bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held || p.queue.n > 0 || s.member != m || s.free() <= 0 {
		return false
	}
	s.take(e)
	return true
}

// vacate removes the member. p.mu is held.
func (s *Seat) vacate() {
	if s.member == nil {
		return
	}
	s.member = nil
	s.grant = 0
	s.since = time.Now()
	p := s.pool
	p.metrics.connections.Add(-1)
	for _, o := range p.seats {
		if o.member != nil {
			return
		}
	}
	p.since = time.Now()
	p.window = p.opts.Ramp
}

// Ended reports the end of the seat's connection, after every one of its Calls
// has been given back by Done. Once for each successful Dial. Any goroutine.
func (s *Seat) Ended(err error) {
	p := s.pool
	p.mu.Lock()
	s.vacate()
	p.mu.Unlock()
	s.ended <- err
}

// run keeps a connection on the seat until ctx ends.
func (s *Seat) run(ctx context.Context) {
	p := s.pool
	backoff := time.Duration(0)
	for n := s.index; ctx.Err() == nil && !s.leave(); n++ {
		o := p.options()
		endpoint := o.Endpoints[n%len(o.Endpoints)]
		backoff = min(max(backoff, o.BackoffMin), o.BackoffMax)
		began := time.Now()
		err := s.sit(ctx, endpoint)
		if s.leave() || ctx.Err() != nil {
			return
		}
		// A connection that lived is not a failure to connect: start over.
		if time.Since(began) > 2*o.BackoffMax {
			backoff = o.BackoffMin
		}
		pause := jitter(backoff)
		backoff = min(2*backoff, o.BackoffMax)
		p.mu.Lock()
		s.lastErr = err
		s.endpoint = endpoint
		p.mu.Unlock()
		if f := o.Failed; f != nil {
			f(endpoint, err, pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// sit makes one connection and stays until it has ended.
func (s *Seat) sit(ctx context.Context, endpoint string) error {
	p := s.pool
	p.mu.Lock()
	o, age := p.opts, p.age
	p.mu.Unlock()
	dctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	m, err := p.dialer.Dial(dctx, endpoint, s.affinity, s)
	cancel()
	if err != nil {
		p.metrics.dialErrors.Inc()
		return err
	}
	p.metrics.reconnects.Inc()
	p.mu.Lock()
	closed := p.closed || s.retired // Update took the seat away
	s.sitting = m
	// The connection may have ended already: then its end waits in s.ended.
	if len(s.ended) == 0 && !closed {
		s.member = m
		s.endpoint = endpoint
		s.since = time.Now()
		s.lastErr = nil
		s.age = age
		p.since = time.Time{}
		p.metrics.connections.Add(1)
	}
	old := p.renew()
	p.mu.Unlock()
	if closed {
		m.Close(ErrClosed)
	} else if f := o.Connected; f != nil {
		f(endpoint)
	}
	old.end()
	s.pull(Elsewhere)
	err = <-s.ended
	p.mu.Lock()
	s.sitting = nil
	s.vacate() // the end may have come before the member was seated
	p.mu.Unlock()
	return err
}
