package pool

import (
	"context"
	"slices"

	"github.com/rdmabridge/rdmabridge/pool/endpoints"
)

// A replacing is an attempt to put another seat, with a better connection, in the place of one. It runs
// beside the seat's goroutine, which learns at once when the present connection ends.
type replacing struct {
	done   chan bool // what tryReplace reports; nil for none
	better bool      // Improving
}

// isBetter reports whether there is an endpoint that the seat prefers to the one it is connected to, and can try to
// return to.
func (s *Seat) isBetter(connected string) bool {
	o := s.pool.options()
	return o.returns() && o.Health.IsBetter(s.prefers(&o), connected)
}

// startReplace calls tryReplace on a goroutine of its own.
func (s *Seat) startReplace(ctx context.Context, connected string, improving bool) replacing {
	r := replacing{make(chan bool, 1), improving}
	s.pool.wg.Go(func() { r.done <- s.tryReplace(ctx, connected, improving) })
	return r
}

// tryReplace tries to connect to the endpoint of isBetter, or, with improving (Seat.Improving), to the endpoint
// connected, that of the present connection, once more. If the server of the new connection answers, another seat
// with that connection takes the place of this one, whose own connection ends after its last Call. It does not
// if this seat's connection has ended meanwhile. tryReplace reports whether this seat has been
// replaced, or is not wanted any more.
func (s *Seat) tryReplace(ctx context.Context, connected string, improving bool) bool {
	p := s.pool
	p.mu.Lock()
	o, present, done := p.opts, s.member, p.closed || s.retired
	n := p.newSeat(s.index)
	p.mu.Unlock()
	if present == nil || o.Dials.Acquire(ctx) != nil {
		return done
	}
	a, ok := endpoints.Attempt{Addr: connected}, true
	if !improving {
		// Not before Dials admits the attempt: those that have to wait for it would wait for that, too.
		if ok = o.returns(); ok {
			a, ok = o.Health.PickBetter(s.prefers(&o), connected)
		}
		if ok && a.NullOnly && p.triesOut() {
			o.Health.Abandoned(a)
			ok = false
		}
	}
	if !ok {
		o.Dials.Release()
		return false
	}
	endpoint := a.Addr
	n.running, n.improving = true, improving
	d, err := n.dial(ctx, a)
	if err == nil {
		if err = n.answered(ctx, &d); err != nil {
			n.failed(ctx, a, &d.o, err)
		}
	}
	if err == nil && a.NullOnly {
		d.o.Health.Abandoned(a) // it may be long before a Call comes, and others need not wait
		a.Alone = false
		err = n.tryOut(ctx, a, &d)
	}
	n.improving = false
	if err != nil {
		if d.o.Discarded != nil {
			d.o.Discarded(n)
		}
		return false
	}
	d.o.Health.Succeeded(a)
	d.o.Health.Answered(endpoint)
	p.mu.Lock()
	if done := p.closed || s.retired; done || s.member != present || len(n.ended) > 0 {
		n.open = d.m
		n.retire()
		p.mu.Unlock()
		d.m.Close(ErrClosed)
		<-n.ended //nolint:errcheck // the reason is ErrClosed
		d.o.Health.Ended(endpoint)
		n.discarded()
		return done
	}
	p.seats[slices.Index(p.seats, s)] = n
	n.used = s.used
	n.setMember(d.m, endpoint, d.generation, false)
	s.clearMember() // after setMember, so that the pool always has a connection
	s.retire()
	s.endWhenIdle()
	p.renewNext() // s may be the successor for which the renewal waits, and n stale by now
	p.mu.Unlock()
	p.wg.Go(func() { n.runConnected(ctx, endpoint) })
	if f := d.o.Connected; f != nil {
		f(endpoint)
	}
	return true
}
