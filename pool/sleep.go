package pool

import (
	"fmt"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/ages"
)

// Connections on demand
//
// With Options.Idle a pool makes connections when Calls need them. A seat sleeps until then: it has
// no connection and makes none. Its connection is closed when no Call has used it for Options.Idle,
// and the seat sleeps again. The pool keeps as many connections as Pool.Need says.
//
// The pool wakes a seat when
//
//   - a Call waits because no credit is free for it, or because there is no usable connection;
//   - the connection that a Call goes to has many Calls outstanding already, or both large and small
//     ones;
//   - the connection is on another loop than the client, and the client's loop has a seat that sleeps:
//     a single Call takes nearly twice as long when it changes loops;
//   - a sticky flow has to use this seat.
//
// Except for sticky flows, it wakes the next seat only when the one before has credits. While no
// connection is usable, it also does so when more Calls wait than the seats that are awake should have,
// or when these seats have tried for long. When a connection gets its first credits, each flow chooses
// its seat again, or the flows that are there would stay where they are.
//
// Time is counted in ages (Pool.age), so that a Call does not read the clock.

// errIdle closes a connection that no Call has used for Options.Idle. It is an ErrClosed.
var errIdle = fmt.Errorf("%w: no call has used the connection", ErrClosed)

// fewCalls is how many Calls a connection may have outstanding before the pool makes another one.
const fewCalls = 8

// Need says how many connections the pool makes and keeps although no Call uses them, if
// Options.Idle is set. It is 1 for a new pool. Need closes connections that nothing has used at
// once if they are too many, and others after Options.Idle. It may be called before Start and after
// Close. It does not wait, and is safe for concurrent use.
func (p *Pool) Need(n int) {
	p.mu.Lock()
	p.need = max(n, 0)
	p.fill()
	p.rest()
	p.mu.Unlock()
}

// required is how many seats must not sleep. The caller holds p.mu.
func (p *Pool) required() int {
	if p.opts.Idle <= 0 {
		return len(p.seats)
	}
	return min(p.need, len(p.seats))
}

// addSeat adds seat i, which sleeps. The caller holds p.mu, or p is new.
func (p *Pool) addSeat(i int) {
	s := p.newSeat(i)
	s.asleep = true
	p.asleep++
	p.seats = append(p.seats, s)
}

// fill wakes seats until as many are awake as are required. The caller holds p.mu.
func (p *Pool) fill() {
	if p.closed {
		return
	}
	missing := p.required() - (len(p.seats) - p.asleep)
	for _, s := range p.seats {
		if missing > 0 && s.asleep {
			p.wake(s)
			s.used = 0
			missing--
		}
	}
}

// wake has s, which sleeps, make a connection. The caller holds p.mu, and the pool is open.
func (p *Pool) wake(s *Seat) {
	s.asleep = false
	p.asleep--
	s.used = p.needed
	s.since = time.Now()
	if p.since.IsZero() && !p.connected() {
		p.since = s.since
	}
	p.startSeat(s)
}

// sleep has s make no connection until wake, and closes its connection, which has no Calls. The caller holds p.mu.
func (p *Pool) sleep(s *Seat) {
	if s.member != nil {
		s.resting = true
		p.closeSoon(s.open, errIdle)
		s.clearMember()
	}
	s.asleep = true
	p.asleep++
	s.since = time.Now()
	p.calm()
}

// calm ends the time for which the pool has been down, if all seats sleep. The caller holds p.mu.
func (p *Pool) calm() {
	if p.asleep == len(p.seats) {
		p.since = time.Time{}
	}
}

// connected reports whether a seat has a connection that is up. The caller holds p.mu.
func (p *Pool) connected() bool { return slices.ContainsFunc(p.seats, (*Seat).isUp) }

// needs notes that e waits, or would have been better off with another connection. The caller holds p.mu.
func (p *Pool) needs(e *Entry) {
	if !e.Aside {
		p.needed = p.age
	}
}

// crowded reports whether the connection of s, which has just got a Call, has so many others or such
// that another connection is better. The caller holds pool.mu.
func (s *Seat) crowded() bool {
	return s.inUse > fewCalls+1 || s.large > 0 && s.inUse > s.large
}

// relieveSeat wakes a seat if e, which has gone to s, would have been better off with another one. The
// caller holds p.mu.
func (p *Pool) relieveSeat(s *Seat, e *Entry, here int) {
	if s.crowded() || s.affinity != here && !e.Aside && p.sleepsOn(here) {
		p.needs(e)
		p.relieve(here)
	}
}

// sleepsOn reports whether a seat of the loop here sleeps. The caller holds p.mu.
func (p *Pool) sleepsOn(here int) bool {
	first := here - p.opts.First
	if here < 0 || first < 0 || first >= p.opts.Loops {
		return false
	}
	for i := first; i < len(p.seats); i += p.opts.Loops { // newSeat
		if p.seats[i].asleep {
			return true
		}
	}
	return false
}

// relieve wakes the next seat, preferably one of the loop here, unless another one is about to have
// credits. The caller holds p.mu.
func (p *Pool) relieve(here int) {
	var next *Seat
	var since time.Time // when the last seat that has no credits yet began
	usable, coming := false, 0
	for _, s := range p.seats {
		switch {
		case s.asleep:
			if next == nil || s.affinity == here && next.affinity != here {
				next = s
			}
		case s.member != nil && s.grant > 0:
			usable = true
		default:
			coming++
			if s.since.After(since) {
				since = s.since
			}
		}
	}
	switch {
	case next == nil || p.closed:
	case coming == 0 && !(usable && p.held), !usable && (p.queue.n > coming*fewCalls || time.Since(since) > ages.Ageing):
		p.wake(next)
	}
}

// relieveQueue wakes seats for the Calls that wait, if they need some: it is not the slow start for which those wait that
// may have any seat. The caller holds p.mu.
func (p *Pool) relieveQueue(here int) {
	for _, s := range p.seats {
		if s.asleep && p.queue.bySeat[s.index].n > 0 && !p.closed {
			p.wake(s)
		}
	}
	if p.queue.anySeat > 0 && (p.free <= 0 || p.slowStart.Over() || p.room().credits == p.credits) {
		p.relieve(here)
	}
}

// rest puts the seats to sleep that nothing needs. The caller holds p.mu.
func (p *Pool) rest() {
	spare := len(p.seats) - p.asleep - p.required()
	if spare <= 0 || p.closed {
		return
	}
	up := -p.required()
	for _, s := range p.seats {
		if s.member != nil {
			up++
		}
	}
	// First the seats without a connection, then those with a connection to another endpoint than
	// the one they prefer.
	for round := range 3 {
		for i := len(p.seats) - 1; i >= 0 && spare > 0; i-- {
			s := p.seats[i]
			if s.asleep || !s.idle() {
				continue
			}
			if s.member != nil {
				if up <= 0 || round == 0 || round == 1 && s.atPreferred() {
					continue
				}
				up--
			}
			p.sleep(s)
			spare--
		}
	}
}

// idle reports whether nothing uses s. The caller holds pool.mu.
func (s *Seat) idle() bool {
	p := s.pool
	switch {
	case s.inUse > 0 || p.queue.bySeat[s.index].n > 0:
		return false
	case s.member == nil && p.queue.anySeat > 0:
		return false
	case s.member == nil && s == p.successor && slices.ContainsFunc(p.seats, (*Seat).stale):
		return false // renewNext waits for it
	case s.member != nil && s.grant <= 0:
		return false // it has not got its first credits yet
	}
	most := uint32((p.opts.Idle + ages.Ageing - 1) / ages.Ageing)
	return s.used == 0 || p.age-s.used > most
}

// atPreferred reports whether the connection of s is to the endpoint that the seat prefers. The
// caller holds pool.mu.
func (s *Seat) atPreferred() bool {
	o := &s.pool.opts
	return !o.returns() || s.endpoint == o.Health.Preferred(o.Prefer+s.index)
}

// arrived notes that the connection of s has got its first credits, which the flows may use. The
// caller holds pool.mu.
func (s *Seat) arrived() {
	p := s.pool
	s.lastErr = nil
	if !p.since.IsZero() {
		p.wasDown, p.since, p.firstUp = p.since, time.Time{}, time.Now()
	}
	if p.opts.Idle > 0 {
		p.arrivals++
	}
}
