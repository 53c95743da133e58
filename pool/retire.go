package pool

import "slices"

// Retire stops dispatching to connection m, which has not begun to end, and puts another seat
// in the place of this one, which dials at once. The Calls on m go on, and other Calls need not
// wait for them. m ends itself after its last Call. Retire does nothing and returns false if m
// is not usable any more. It is safe for concurrent use.
func (s *Seat) Retire(m Member) bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	ok := !p.closed && s.member != nil && s.member == m
	if ok {
		s.supersede()
	}
	return ok
}

// Renew replaces the connections that would be made differently now, one after the other. It does not wait.
func (p *Pool) Renew() {
	p.leaveNullOnly()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewNext()
}

// renewNext replaces the next seat that is stale, unless the seat that replaced the last one
// is awake and has no connection with a credit yet. The caller holds pool.mu.
func (p *Pool) renewNext() {
	if n := p.successor; p.closed || n != nil && !n.retired && !n.asleep && (n.member == nil || n.grant <= 0) {
		return // a seat that sleeps is no successor any more: Seat.idle
	}
	p.successor = nil
	for _, s := range p.seats {
		if s.stale() {
			p.successor = s.supersede()
			s.endWhenIdle()
			return
		}
	}
}

// stale reports whether the seat has a connection that would be made differently now. The
// caller holds pool.mu.
func (s *Seat) stale() bool {
	o := &s.pool.opts
	return s.member != nil && (s.generation != s.pool.generation || !slices.Contains(o.Endpoints, s.endpoint) || o.Health.Leaves(s.endpoint))
}

// supersede replaces s, which has a connection, by another seat. It starts and returns the new
// seat. The caller holds p.mu.
func (s *Seat) supersede() *Seat {
	p := s.pool
	s.clearMember()
	s.retire()
	n := p.newSeat(s.index)
	n.used = s.used
	p.seats[slices.Index(p.seats, s)] = n
	p.startSeat(n)
	return n
}

// retire adds s to the seats that have been replaced. The caller holds p.mu.
func (s *Seat) retire() {
	s.retired = true
	s.pool.retired = append(s.pool.retired, s)
}

// discarded reports whether s has been retired. If so it removes s from the pool. It is
// called when the connection of s has ended.
func (s *Seat) discarded() bool {
	p := s.pool
	p.mu.Lock()
	retired, f := s.retired, p.opts.Discarded
	p.retired = slices.DeleteFunc(p.retired, func(o *Seat) bool { return o == s })
	p.mu.Unlock()
	if retired && f != nil {
		f(s)
	}
	return retired
}

// endWhenIdle has the pool close the connection of s, which gets no more Calls, after its last Call. The caller holds
// pool.mu.
func (s *Seat) endWhenIdle() {
	s.closeWhenIdle = true
	s.endIfIdle()
}

// endIfIdle closes the connection of s if the pool must close it and it has no Calls left. The caller holds pool.mu.
func (s *Seat) endIfIdle() {
	if s.closeWhenIdle && s.inUse == 0 && s.open != nil {
		s.closeWhenIdle = false
		s.pool.closeSoon(s.open, errRetired)
	}
}

// closeSoon closes m, the connection of a seat, on a goroutine of its own, because the caller holds p.mu.
func (p *Pool) closeSoon(m Member, reason error) {
	p.wg.Go(func() { m.Close(reason) })
}
