package pool

import (
	"context"
	"slices"
)

// tryPreferred tries to return to an endpoint that the seat prefers to the one it is
// connected to. It reports whether another seat has replaced this one.
func (s *Seat) tryPreferred(ctx context.Context, connected string) bool {
	if usable, done := s.status(); !usable {
		return done
	}
	o := s.pool.options()
	if !o.returns() {
		return false
	}
	a, ok := o.Health.better(s.prefers(&o), connected)
	return ok && s.tryReplace(ctx, a, false)
}

// tryReplace makes attempt a. If that succeeds, another seat with the new
// connection takes the place of this one, whose own connection ends after its last Call.
// It reports whether this seat has been replaced. improving is for Seat.Improving.
func (s *Seat) tryReplace(ctx context.Context, a attempt, improving bool) bool {
	p, endpoint := s.pool, a.addr
	o := p.options()
	if usable, done := s.status(); !usable {
		o.Health.abandoned(a)
		return done
	}
	if o.Dials.Acquire(ctx) != nil {
		o.Health.abandoned(a)
		return false
	}
	n := p.newSeat(s.index)
	n.running, n.improving = true, improving
	m, o, generation, err := n.dial(ctx, a)
	n.improving = false
	if err != nil {
		if o.Discarded != nil {
			o.Discarded(n)
		}
		return false
	}
	p.mu.Lock()
	if p.closed || s.retired || s.member == nil {
		n.open = m
		n.retire()
		p.mu.Unlock()
		m.Close(ErrClosed)
		<-n.ended //nolint:errcheck // the reason is ErrClosed
		o.Health.ended(endpoint)
		n.discarded()
		return true
	}
	p.seats[slices.Index(p.seats, s)] = n
	n.used = s.used
	n.setMember(m, endpoint, generation, false)
	s.clearMember() // after setMember, so that the pool always has a connection
	s.retire()
	s.closeWhenIdle = true
	idle := s.takeIdle()
	p.mu.Unlock()
	p.wg.Go(func() { n.runConnected(ctx, endpoint) })
	if f := o.Connected; f != nil {
		f(endpoint)
	}
	idle.close()
	p.slowStart.wake(Elsewhere)
	return true
}
