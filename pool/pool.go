// Package pool shares the connections to one upstream between many clients.
//
// # Operation
//
// A [Pool] keeps a fixed number of seats, each for one connection. A seat's
// goroutine dials, waits for the connection to end, and dials again after a
// jittered back-off. All connections form one ledger of credits (RFC 8166
// Section 3.3): a Call goes where a credit is free, preferably on a connection
// that lives on the caller's own loop. When no credit is free Calls wait in a
// queue that is fair between clients: deficit round robin over the [Flow] of each
// client, by octets and weight, so that small Calls do not wait behind another
// client's megabytes and every client makes progress. Nor do they behind the client's
// own, in the queue or, where there are several connections, on them.
//
// # Ownership
//
// The mutex of a Pool is a leaf: nothing is called while it is held. An [Entry]
// belongs to its owner until Submit, then to the pool until Member.Dispatch, then
// to the member until Done. Entries are linked in place; nothing is allocated
// per Call.
package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

var (
	// ErrClosed reports a Call to a pool that is closed.
	ErrClosed = errors.New("pool: closed")
	// ErrQueueTimeout reports a Call that waited too long for a credit.
	ErrQueueTimeout = errors.New("pool: no credit within the time a client may wait")
	// ErrRetired ends a connection that has no Calls and that Update has replaced. It
	// is an ErrClosed.
	ErrRetired = fmt.Errorf("%w: connection retired", ErrClosed)
	// ErrQueueFull reports a Call that found the queue at its limit.
	ErrQueueFull = errors.New("pool: queue full")
)

// A Member is one connection of a pool.
type Member interface {
	// Dispatch carries e, for which a credit has been taken. It is called without
	// the pool's lock and must not block. here is the affinity of the loop it is
	// called on, or Elsewhere.
	Dispatch(e *Entry, here int)
	// Affinity names the loop that owns the connection; compared with ==.
	Affinity() int
	// Close ends the connection.
	Close(err error)
}

// Elsewhere is the affinity of a goroutine that is no loop.
const Elsewhere = -1

// A Dialer makes connections. Dial blocks until the connection is usable; the
// pool calls it on the seat's goroutine. The member reports its credits with
// Seat.Granted and its end with Seat.Ended.
type Dialer interface {
	Dial(ctx context.Context, endpoint string, affinity int, s *Seat) (Member, error)
}

// An Owner is told about Calls that end in the queue.
type Owner interface {
	// Expired ends e without its ever having been dispatched. It is called
	// without the pool's lock, on any goroutine.
	Expired(e *Entry, err error)
}

// A Pool is the connections to one upstream and the Calls that wait for them.
type Pool struct {
	dialer Dialer // constant, as is owner
	owner  Owner

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex // guards all below and the fields of seats and flows; a leaf
	opts       Options
	ctx        context.Context // of Start; nil before
	ownHealth  bool            // nobody else Sets opts.Health
	generation int             // of what connections are made from: times it has changed
	successor  *Seat           // the latest that renew put in the place of another
	seats      []*Seat
	retired    []*Seat // whose connections end, replaced by others
	queue      queues
	held       bool // memory is short: nothing is dispatched until Resume
	closed     bool
	since      time.Time // when the pool last had no usable connection; zero while it has one
	firstUp    time.Time // when it last had its first one

	slowStart *SlowStart // constant
	metrics   *Metrics   // constant
	blocked   bool       // listed in SlowStart.blocked; guarded by SlowStart.mu
}

// New returns a pool that has not been started. It fails if o is not valid.
func New(o Options, d Dialer, owner Owner) (*Pool, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{
		queue: queues{byLoop: make([]queue, o.Loops), bySeat: make([]queue, o.Connections)},
		opts:  o, dialer: d, owner: owner, slowStart: o.SlowStart, metrics: o.Metrics,
	}
	if p.metrics == nil {
		p.metrics = &Metrics{}
	}
	if o.Health == nil {
		p.opts.Health, p.ownHealth = &Health{}, true
		p.opts.Health.Set(o.Endpoints, false)
	}
	for i := range o.Connections {
		p.seats = append(p.seats, p.newSeat(i))
	}
	return p, nil
}

func (p *Pool) newSeat(i int) *Seat {
	return &Seat{pool: p, index: i, affinity: p.opts.First + i%p.opts.Loops, ended: make(chan error, 1), since: time.Now()}
}

// Start begins to connect. Close ends what Start began.
func (p *Pool) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.metrics.join(p)
	p.mu.Lock()
	p.ctx, p.cancel = ctx, cancel
	p.since = time.Now()
	for _, s := range p.seats {
		p.startSeat(s)
	}
	p.mu.Unlock()
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.sweep(ctx)
	}()
}

// startSeat starts the goroutine of s. p.mu is held, and the pool is open.
func (p *Pool) startSeat(s *Seat) {
	ctx := p.ctx
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		s.run(ctx)
	}()
}

// Close ends every connection and every waiting Call, and returns when the
// pool's goroutines have ended. It waits for the connections' loops, and so is not
// for a loop. It may be called more than once.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	waiting := p.queue.drain()
	var members []Member
	for _, s := range slices.Concat(p.seats, p.retired) {
		if s.open != nil {
			members = append(members, s.open)
		}
	}
	cancel := p.cancel
	p.mu.Unlock()
	p.expire(waiting, ErrClosed)
	if cancel != nil {
		cancel() // first: the end of these connections is no failure
	}
	for _, m := range members {
		m.Close(ErrClosed)
	}
	p.wg.Wait()
	p.metrics.leave(p)
}

// Submit sends e on, or queues it. here is the caller's loop. e.Flow and e.Cost
// must be set. An error means that the pool did not take e.
func (p *Pool) Submit(e *Entry, here int) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	f := e.Flow
	if f.Sticky && !f.active {
		p.assignQueue(f)
	}
	if !p.held && !p.queue.blocks(f) {
		if s := p.choose(e, here); s != nil {
			if ok, counted := p.slowStart.dispatch(p); ok {
				m := s.takeCredit(e, counted)
				p.mu.Unlock()
				m.Dispatch(e, here)
				return nil
			}
		}
	}
	if p.queue.n >= p.opts.QueueLimit {
		p.mu.Unlock()
		return ErrQueueFull
	}
	e.queuedAt = time.Now()
	p.queue.push(e, here)
	p.mu.Unlock()
	p.metrics.queued.Add(1)
	return nil
}

// Requeue puts e back at the head of its flow: its connection was lost, or
// could not take it for now. e's credit has been returned by Seat.Done. here is
// the caller's loop. A Call that was never sent has waited since it was queued
// first: ErrQueueTimeout says that this is too long.
func (p *Pool) Requeue(e *Entry, here int) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	switch now := time.Now(); {
	case e.queuedAt.IsZero():
		e.queuedAt = now
	case now.Sub(e.queuedAt) > p.opts.QueueWait:
		p.mu.Unlock()
		p.metrics.expired.Inc()
		return ErrQueueTimeout
	}
	if f := e.Flow; f.Sticky && !f.active {
		p.assignQueue(f)
	}
	p.queue.pushFront(e, here)
	p.mu.Unlock()
	p.metrics.queued.Add(1)
	p.kick(here)
	return nil
}

// Hold stops dispatching until Resume: the memory that Replies need is spent.
// It reports whether the caller is the one who has to see to Resume.
func (p *Pool) Hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.held
	p.held = true
	return !was
}

// Resume ends Hold and dispatches what can go.
func (p *Pool) Resume() {
	p.mu.Lock()
	p.held = false
	p.mu.Unlock()
	p.kick(Elsewhere)
}

// kick dispatches queued Calls while credits are free.
func (p *Pool) kick(here int) {
	for {
		p.mu.Lock()
		var m Member
		var e *Entry
		if s := p.ready(here); s != nil {
			m, e = p.next(s)
		}
		p.mu.Unlock()
		if e == nil {
			return
		}
		p.dispatch(m, e, here)
	}
}

// ready is a seat with a free credit that something waits for, or nil. p.mu is held.
func (p *Pool) ready(here int) *Seat {
	switch {
	case p.queue.n == 0:
	case p.queue.anySeat > 0:
		return p.pick(here, false)
	default:
		for _, s := range p.seats {
			if p.queue.bySeat[s.index].n > 0 && s.free() > 0 {
				return s
			}
		}
	}
	return nil
}

// next takes the next queued Call for seat s. p.mu is held.
func (p *Pool) next(s *Seat) (Member, *Entry) {
	if p.held || p.closed || s.free() <= 0 || !p.queue.waitsFor(s.index) {
		return nil, nil
	}
	ok, counted := p.slowStart.dispatch(p)
	if !ok {
		return nil, nil
	}
	e := p.queue.pop(s.affinity, s.index)
	return s.takeCredit(e, counted), e
}

func (p *Pool) dispatch(m Member, e *Entry, here int) {
	p.metrics.queued.Add(-1)
	p.metrics.waits.Observe(uint64(time.Since(e.queuedAt)))
	m.Dispatch(e, here)
}

// choose returns the seat for e, or nil. Small Calls of one flow stay on one connection
// while it has credits and carries nothing large: they are written together, and
// their Replies come together and are written together. Large ones are spread. p.mu
// is held.
func (p *Pool) choose(e *Entry, here int) *Seat {
	f := e.Flow
	if f.seatQueue > 0 {
		if s := p.seats[f.seatQueue-1]; s.free() > 0 {
			return s
		}
		return nil
	}
	if e.large() {
		return p.pick(here, true)
	}
	if s := f.seat; s == nil || s.affinity != here || s.free() <= 0 {
		f.seat = p.pick(here, false)
	} else if s.large > 0 {
		if o := p.pick(here, false); o.large == 0 && o.affinity == here {
			f.seat = o
		}
	}
	return f.seat
}

// pick returns the seat for a Call, large or small, preferring those of loop here,
// or nil. p.mu is held.
func (p *Pool) pick(here int, large bool) *Seat { return p.pickExcept(0, here, large) }

// pickExcept is pick among the seats that refused does not name. p.mu is held.
func (p *Pool) pickExcept(refused uint64, here int, large bool) *Seat {
	var best *Seat
	bestNear := false
	for _, s := range p.seats {
		if s.free() <= 0 || refused&s.bit() != 0 {
			continue
		}
		near := s.affinity == here
		if best == nil || near && !bestNear || near == bestNear && s.betterThan(best, large) {
			best, bestNear = s, near
		}
	}
	return best
}

// betterThan reports whether a Call goes better to s than to o. What is small is not to
// wait behind megabytes in a connection's queue of octets: as long as both sorts are
// under way they keep to connections of their own, if there are several. Beyond that
// the most free credits count. pool.mu is held.
func (s *Seat) betterThan(o *Seat, large bool) bool {
	switch mixed, other := s.inUse > s.large, o.inUse > o.large; {
	case !large && s.large != o.large:
		return s.large < o.large
	case large && mixed != other:
		return other
	case large && mixed && (s.large > 0) != (o.large > 0):
		return s.large > 0
	}
	return s.free() > o.free()
}

// sweep ends Calls that have waited too long. A client whose Call ends here has
// its connection closed by the owner, and retransmits: an upstream that is down
// must not look like a server that thinks for ever.
func (p *Pool) sweep(ctx context.Context) {
	every := func() time.Duration { return min(max(p.options().QueueWait/8, 10*time.Millisecond), time.Second) }
	t := time.NewTicker(every())
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			p.mu.Lock()
			last := now.Add(-p.opts.QueueWait)
			old := p.queue.expire(last)
			moved := p.releaseSticky()
			p.mu.Unlock()
			t.Reset(every())
			p.expire(old, ErrQueueTimeout)
			if moved {
				p.kick(Elsewhere)
			}
		}
	}
}

func (p *Pool) expire(e *Entry, err error) {
	for e != nil {
		next := e.next
		e.next = nil
		p.metrics.queued.Add(-1)
		p.metrics.expired.Inc()
		p.owner.Expired(e, err)
		e = next
	}
}

// Forget takes every queued Call of f out of the queue and hands it to
// Owner.Expired with err: its client is gone.
func (p *Pool) Forget(f *Flow, err error) {
	p.mu.Lock()
	e := p.queue.forget(f)
	p.mu.Unlock()
	p.expire(e, err)
}

// Stats is a moment's view of a pool.
type Stats struct {
	Name        string
	Connections []SeatStats
	Usable      int // connections that are up
	Granted     int
	Outstanding int
	Queued      int
	Retired     int       // connections that end when their last Calls are answered
	DownSince   time.Time // zero while a connection is up
}

// SeatStats is a moment's view of a seat.
type SeatStats struct {
	Endpoint    string
	Up          bool
	Granted     int
	Outstanding int
	Since       time.Time
	LastError   string
}

// Stats returns a moment's view.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Name: p.opts.Name, Queued: p.queue.n, Retired: len(p.retired), DownSince: p.since}
	for _, s := range p.seats {
		ss := SeatStats{Endpoint: s.endpoint, Up: s.member != nil, Granted: s.grant, Outstanding: s.inUse, Since: s.since}
		if s.lastErr != nil {
			ss.LastError = s.lastErr.Error()
		}
		if ss.Up {
			st.Usable++
			st.Granted += s.grant
			st.Outstanding += s.inUse
		}
		st.Connections = append(st.Connections, ss)
	}
	return st
}

// jitter spreads d over [d/2, d).
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
