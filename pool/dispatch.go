package pool

import "time"

// kick dispatches queued Calls while credits are free. If Calls are left that other connections could have, it wakes a
// seat.
func (p *Pool) kick(here int) { p.kickUntil(here, false) }

// kickUntil does what kick does. If away is set, it ends with the first Call that goes to another loop than here.
func (p *Pool) kickUntil(here int, away bool) {
	for {
		p.mu.Lock()
		m, e := p.nextAny(here)
		if e == nil && p.asleep > 0 && p.queue.n > 0 {
			p.relieveQueue(here)
		}
		p.mu.Unlock()
		if e == nil {
			p.part.Wake(here) // there may be room since
			return
		}
		p.dispatch(m, e, here)
		if away && m.Affinity() != here {
			return
		}
	}
}

// nextAny takes the next queued Call for any seat, and a credit for it. The caller holds p.mu.
func (p *Pool) nextAny(here int) (Member, *Entry) {
	if p.queue.n == 0 {
		return nil, nil
	}
	if p.queue.anySeat > 0 {
		if s := p.pick(0, here, false); s != nil {
			if m, e, _ := p.next(s, time.Now(), 1); e != nil {
				return m, e
			}
		}
	}
	for _, s := range p.seats {
		if p.queue.bySeat[s.index].n > 0 {
			if m, e, _ := p.next(s, time.Now(), 1); e != nil {
				return m, e
			}
		}
	}
	return nil, nil
}

// next takes the next queued Call for seat s, with n more that are linked behind it, most in all, and credits for them. The
// caller holds p.mu.
func (p *Pool) next(s *Seat, now time.Time, most int) (m Member, e *Entry, n int) {
	if p.held || p.closed || s.free() <= 0 || p.queue.n == 0 || !p.part.Admits(&p.place) {
		return nil, nil, 0
	}
	p.slowStart.Block(&p.slowed) // before room, or a Reply in between would not wake p
	if e, n = p.take(s, p.room(), now, most); e == nil {
		return nil, nil, 0
	}
	return p.divert(s, e).takeCredits(e, e.next, n, p.slowStart.Dispatch()), e, n
}

// dispatch hands e, which was queued, to m.
func (p *Pool) dispatch(m Member, e *Entry, here int) {
	p.metrics.queued.Add(-1)
	m.Dispatch(e, here)
}

// expire gives the owner the list of entries that begins with e, which have left the queue.
func (p *Pool) expire(e *Entry, err error) {
	n := length(e)
	p.metrics.queued.Add(int64(-n))
	p.metrics.expired.Add(uint64(n))
	p.refuse(e, err)
}

// kickOne dispatches a queued Call. If more Calls wait, it puts p in line again.
func (p *Pool) kickOne(here int) {
	p.mu.Lock()
	p.place.Called = true
	m, e := p.nextAny(here)
	p.place.Called = false
	if e != nil && p.queue.n > 0 {
		p.part.Join(&p.place)
	}
	p.mu.Unlock()
	if e != nil {
		p.dispatch(m, e, here)
	}
}

// choose returns the seat for e, or nil if e has to wait. It keeps the small Calls of one flow
// on one connection as long as the connection has free credits and no large Calls, so that the
// connection writes the Calls together and the bridge writes their Replies together. It spreads
// large Calls over the connections. When a connection was made because Calls need it, each flow
// chooses again. The caller holds p.mu.
func (p *Pool) choose(e *Entry, here int) *Seat {
	f := e.Flow
	if f.seatQueue > 0 {
		if s := p.seats[f.seatQueue-1]; s.free() > 0 {
			return s
		}
		return nil
	}
	if e.large() {
		return p.pick(0, here, true)
	}
	if s := f.seat; s == nil || s.affinity != here || s.free() <= 0 || f.arrivals != p.arrivals {
		f.seat, f.arrivals = p.pick(0, here, false), p.arrivals
	} else if s.large > 0 {
		if o := p.pick(0, here, false); o.large == 0 && o.affinity == here {
			f.seat = o
		}
	}
	return f.seat
}

// pick returns the best seat for a Call that any seat may have but those in the set refused, or nil if none has a free
// credit. It prefers the seats of the loop with index here. The caller holds p.mu.
func (p *Pool) pick(refused uint64, here int, large bool) *Seat {
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

// betterThan reports whether s is better than o for a large Call, or for a small one. A small
// Call must not wait until a connection has written megabytes of large Calls. So while the pool
// has both kinds outstanding, betterThan gives each kind connections of its own, if the pool
// has several. Otherwise the seat with more free credits is better. The caller holds the pool's
// mu.
func (s *Seat) betterThan(o *Seat, large bool) bool {
	switch small, otherSmall := s.inUse > s.large, o.inUse > o.large; {
	case !large && s.large != o.large:
		return s.large < o.large
	case large && small != otherSmall:
		return otherSmall
	case large && small && (s.large > 0) != (o.large > 0):
		return s.large > 0
	}
	return s.free() > o.free()
}

// bit is the element of Entry.refused that stands for the seat. In a pool of more than
// 64 seats some seats share a bit, so that Steer tries fewer of them.
func (s *Seat) bit() uint64 { return 1 << (s.index % 64) }
