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
	member        Member // the sitting one while it takes Calls, else nil
	open          Member // from Dial until its end has been seen, so that Close finds it
	grant         int
	inUse         int
	large         int // of these, large Calls
	counted       int // of inUse, Calls that the slow start counts
	endpoint      string
	since         time.Time
	lastErr       error
	retired       bool // another seat has its place, or it has none
	closeWhenIdle bool // and its connection is to be closed after its last Call
	slowStart     bool // its connection is counted by the slow start
	generation    int  // Pool.age when its connection was made

	last      string // endpoint connected to last; belongs to the seat's goroutine
	improving bool   // Dial is to make a better connection than there is; likewise
}

// Improving reports, to Dial, that there is a connection already, which only what Options.Astray
// misses makes worth replacing. Otherwise Dial fails, which is no failure of the endpoint.
func (s *Seat) Improving() bool { return s.improving }

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

// takeCredit uses one credit for e, which the slow start has counted or not. pool.mu is held
// and free() > 0.
func (s *Seat) takeCredit(e *Entry, counted bool) Member {
	s.inUse++
	e.seat = s
	if e.counted = counted; counted {
		s.counted++
	}
	if e.asLarge = e.large(); e.asLarge {
		s.large++
	}
	return s.member
}

// returnCredit takes e's credit back, and reports whether the slow start has counted e. It is
// still counted then. pool.mu is held.
func (s *Seat) returnCredit(e *Entry) (counted bool) {
	s.inUse--
	if e.asLarge {
		s.large--
	}
	// If the seat has been retired its Calls are not counted any more.
	if counted = e.counted && !s.retired; counted {
		s.counted--
	}
	e.seat, e.asLarge, e.counted = nil, false, false
	return counted
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
	counted := s.returnCredit(e)
	if counted {
		p.slowStart.undispatch(1)
	}
	last := s.toClose()
	m, next := p.next(s)
	p.mu.Unlock()
	last.close()
	if next != nil {
		p.dispatch(m, next, here)
	}
	if counted {
		p.slowStart.wake(here) // this connection may have had no use for the room
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
	if !p.held && !p.closed && p.stickySeat(e.Flow) == nil {
		best = p.pickExcept(e.refused, here, e.large())
	}
	if best == nil {
		e.refused = 0
		p.mu.Unlock()
		return false
	}
	counted := s.returnCredit(e)
	last := s.toClose()
	m := best.takeCredit(e, counted)
	if !e.large() {
		// The client whose XIDs met this one's may go on to the next as this one does.
		e.Flow.seat = best
	}
	other, next := p.next(s)
	p.mu.Unlock()
	last.close()
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
		s.lost()
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
	ok := !p.closed && s.member != nil && s.member == m
	if ok {
		s.supersede()
	}
	p.mu.Unlock()
	p.slowStart.wake(Elsewhere)
	return ok
}

// supersede puts another seat in the place of s, which has a connection. p.mu is held.
func (s *Seat) supersede() *Seat {
	p := s.pool
	s.clearMember()
	s.retire()
	n := p.newSeat(s.index)
	p.seats[slices.Index(p.seats, s)] = n
	p.startSeat(n)
	return n
}

// retire lists s among those that have no place, and takes it out of the count of Calls
// outstanding: what it has goes on, and the others need not wait for it. p.mu is held.
func (s *Seat) retire() {
	s.retired = true
	s.pool.retired = append(s.pool.retired, s)
	if s.counted > 0 {
		s.pool.slowStart.undispatch(s.counted)
		s.counted = 0
	}
}

// discarded ends the time of a seat that was retired, and reports whether it was.
func (s *Seat) discarded() bool {
	p := s.pool
	p.mu.Lock()
	retired, left := s.retired, p.opts.Discarded
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
	s.takeCredit(e, false)
	return true
}

// Spent reports whether every credit of connection m is in use.
func (s *Seat) Spent(m Member) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.member == m && s.inUse > 0 && s.free() <= 0
}

// lost removes the member, whose connection ends. p.mu is held.
func (s *Seat) lost() {
	s.clearMember()
	if s.slowStart {
		s.slowStart = false
		s.pool.slowStart.disconnected()
	}
}

// clearMember removes the member. Its connection goes on or ends. p.mu is held.
func (s *Seat) clearMember() {
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
}

// Ended reports the end of the seat's connection, after every one of its Calls
// has been given back by Done. Once for each successful Dial. Any goroutine.
func (s *Seat) Ended(err error) {
	p := s.pool
	p.mu.Lock()
	s.lost()
	p.mu.Unlock()
	s.ended <- err
}

// run keeps a connection on the seat until ctx ends.
func (s *Seat) run(ctx context.Context) {
	p := s.pool
	backoff, failed := time.Duration(0), ""
	for ctx.Err() == nil && !s.discarded() {
		o := p.options()
		backoff = min(max(backoff, o.BackoffMin), o.BackoffMax)
		if o.Dials.Acquire(ctx) != nil {
			return
		}
		endpoint := o.Health.pick(s.prefers(&o), o.KeepEndpoint, failed)
		began := time.Now()
		err, lived := s.connect(ctx, endpoint)
		if s.discarded() || ctx.Err() != nil {
			return
		}
		failed = ""
		if !lived {
			failed = endpoint
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

// prefers is the number of the endpoint that the seat would rather have.
func (s *Seat) prefers(o *Options) int {
	if s.last != "" && o.KeepEndpoint {
		return o.Health.number(s.last)
	}
	return o.Prefer + s.index
}

// connect makes one connection and stays until it has ended. It reports whether there was
// one. An attempt has been let in by Options.Dials.
func (s *Seat) connect(ctx context.Context, endpoint string) (err error, lived bool) { //nolint:revive // an end is no failure
	p := s.pool
	m, o, age, err := s.dial(ctx, endpoint)
	if err != nil {
		return err, false
	}
	p.mu.Lock()
	closed := p.closed || s.retired // Update took the seat away
	s.setMember(m, endpoint, age, closed)
	old := p.renewNext()
	p.mu.Unlock()
	if closed {
		m.Close(ErrClosed)
	} else if f := o.Connected; f != nil {
		f(endpoint)
	}
	old.close()
	p.slowStart.wake(Elsewhere)
	s.pull(Elsewhere)
	return s.waitEnd(ctx, endpoint), true
}

// dial makes a connection for the seat.
func (s *Seat) dial(ctx context.Context, endpoint string) (m Member, o Options, age int, err error) {
	p := s.pool
	p.mu.Lock()
	o, age = p.opts, p.generation
	p.mu.Unlock()
	dctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	m, err = p.dialer.Dial(dctx, endpoint, s.affinity, s)
	cancel()
	o.Dials.Release()
	if err != nil {
		if s.improving {
			return nil, o, age, err
		}
		p.metrics.dialErrors.Inc()
		if ctx.Err() == nil {
			o.Health.failed(endpoint, false)
		} else {
			o.Health.abandoned(endpoint)
		}
		return nil, o, age, err
	}
	p.metrics.reconnects.Inc()
	o.Health.succeeded(endpoint)
	s.last = endpoint
	return m, o, age, nil
}

// setMember makes m the seat's connection, unless that has no use for it any more. p.mu
// is held.
func (s *Seat) setMember(m Member, endpoint string, age int, closed bool) {
	p := s.pool
	s.open = m
	// The connection may have ended already: then its end waits in s.ended.
	if len(s.ended) == 0 && !closed {
		s.member = m
		s.endpoint = endpoint
		s.since = time.Now()
		s.lastErr = nil
		s.generation = age
		if !p.since.IsZero() {
			p.since, p.firstUp = time.Time{}, s.since
		}
		p.metrics.connections.Add(1)
		s.slowStart = true
		p.slowStart.connected()
		p.reassignQueues()
	}
}

// preferEvery is how often a connection looks whether its seat prefers another endpoint,
// and preferSeldom how often it does as long as it has no choice: a reload may give it one.
const (
	preferEvery  = time.Second
	preferSeldom = 10 * time.Second
)

// waitEnd waits for the end of the seat's connection to endpoint.
func (s *Seat) waitEnd(ctx context.Context, endpoint string) (err error) {
	p := s.pool
	o := p.options()
	every := preferEvery
	if !o.returns() {
		every = preferSeldom
	}
	t := time.NewTicker(every)
	defer t.Stop()
	home := t.C
	settle := s.improveTimer(&o)
	for waiting := true; waiting; {
		gone := false
		select {
		case err = <-s.ended:
			waiting = false
		case <-home:
			gone = s.tryPreferred(ctx, endpoint)
		case <-settle:
			if gone = s.tryReplace(ctx, endpoint, true); !gone {
				settle = s.improveTimer(&o)
			}
		}
		if gone {
			home, settle = nil, nil // what is left is to wait for the last Call
		}
	}
	if o.HostGone != nil && ctx.Err() == nil && o.HostGone(err) {
		o.Health.failed(endpoint, true)
	}
	p.mu.Lock()
	s.open = nil
	s.lost() // the end may have come before the member was seated
	p.mu.Unlock()
	return err
}

// improveTimer is when the seat is to try for a better connection; nil for never.
func (s *Seat) improveTimer(o *Options) <-chan time.Time {
	if o.Improve == nil {
		return nil
	}
	if d := o.Improve(s); d > 0 {
		return time.After(d)
	}
	return nil
}

// status reports whether the seat has a connection, and if not, whether it is done with.
func (s *Seat) status() (has, done bool) {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	done = p.closed || s.retired
	return s.member != nil && !done, done
}

// tryPreferred tries to connect to an endpoint that the seat would rather have, as replace does.
func (s *Seat) tryPreferred(ctx context.Context, has string) bool {
	if seated, done := s.status(); !seated {
		return done
	}
	o := s.pool.options()
	if !o.returns() {
		return false
	}
	endpoint, ok := o.Health.better(s.prefers(&o), has)
	return ok && s.tryReplace(ctx, endpoint, false)
}

// tryReplace tries to connect to endpoint. When it can, another seat with that connection
// takes the place of this one, whose own ends after its last Call. It reports whether the
// seat is done with.
func (s *Seat) tryReplace(ctx context.Context, endpoint string, again bool) bool {
	p := s.pool
	o := p.options()
	if seated, done := s.status(); !seated {
		o.Health.abandoned(endpoint)
		return done
	}
	if o.Dials.Acquire(ctx) != nil {
		o.Health.abandoned(endpoint)
		return false
	}
	n := p.newSeat(s.index)
	n.improving = again
	m, o, age, err := n.dial(ctx, endpoint)
	n.improving = false
	if err != nil {
		if o.Discarded != nil {
			o.Discarded(n)
		}
		return false
	}
	p.mu.Lock()
	if p.closed || s.retired || s.member == nil {
		// There is no place to take. Its end is waited for, as ever.
		n.open = m
		n.retire()
		p.mu.Unlock()
		m.Close(ErrClosed)
		<-n.ended //nolint:errcheck // it is our own
		n.discarded()
		return true
	}
	p.seats[slices.Index(p.seats, s)] = n
	n.setMember(m, endpoint, age, false)
	s.clearMember() // after it: there is a connection all the time
	s.retire()
	s.closeWhenIdle = true
	last := s.toClose()
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		n.pull(Elsewhere)
		err := n.waitEnd(ctx, endpoint)
		if n.discarded() || ctx.Err() != nil {
			return
		}
		if f := o.Failed; f != nil {
			f(endpoint, err, 0)
		}
		n.run(ctx)
	}()
	p.mu.Unlock()
	if f := o.Connected; f != nil {
		f(endpoint)
	}
	last.close()
	p.slowStart.wake(Elsewhere)
	return true
}
