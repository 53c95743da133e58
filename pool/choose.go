package pool

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
		return p.pick(here, true)
	}
	if s := f.seat; s == nil || s.affinity != here || s.free() <= 0 || f.arrivals != p.arrivals {
		f.seat, f.arrivals = p.pick(here, false), p.arrivals
	} else if s.large > 0 {
		if o := p.pick(here, false); o.large == 0 && o.affinity == here {
			f.seat = o
		}
	}
	return f.seat
}

// pick returns the best seat for a Call that any seat may have, or nil if none has a free
// credit. It prefers the seats of the loop with index here. The caller holds p.mu.
func (p *Pool) pick(here int, large bool) *Seat { return p.pickExcept(0, here, large) }

// pickExcept does what pick does, but never returns a seat in the set refused. The caller holds
// p.mu.
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
