package pool

// Granted sets how many Calls may be outstanding on the seat's connection, and
// dispatches queued Calls that may go now. here is the affinity of the calling loop.
func (s *Seat) Granted(n, here int) {
	p := s.pool
	p.mu.Lock()
	s.uncount()
	was := s.grant
	s.grant = n
	s.count()
	if n > 0 && s.granted != nil {
		close(s.granted)
		s.granted = nil
	}
	if was <= 0 && n > 0 && s.member != nil {
		s.arrived()
		p.rebindAll() // before this was the first connection, flows took their seats for absent
		if p.successor == s {
			p.renewNext()
		}
	}
	p.mu.Unlock()
	p.kick(here)
}

// Done returns the credit of e and dispatches queued Calls that may go now. here is the affinity of the calling loop,
// preferably the connection's own, which sends them at once. A loop that handles many Replies in a pass calls
// Batch.Done instead.
func (s *Seat) Done(e *Entry, here int) {
	p := s.pool
	var c credit
	e.yield(s, &c)
	p.mu.Lock()
	p.giveBack(&c, e.host(), 1)
	p.slowStart.Undispatch(c.slowStart, 1)
	p.mu.Unlock()
	p.kick(here)
	if c.slowStart != 0 {
		p.slowStart.Wake(here) // the Calls above may have left the room to others
	}
}

// Steer moves e to another connection, because this seat's connection cannot carry e and
// another one may. It dispatches e to a connection that has a free credit and has not refused e
// since e was queued, and returns the credit that e has on this seat. If no such connection
// exists, Steer does nothing and returns false, and the next Steer tries all connections again.
// here is the affinity of the calling loop.
func (s *Seat) Steer(e *Entry, here int) bool {
	p := s.pool
	p.mu.Lock()
	e.refused |= s.bit()
	var best *Seat
	if !p.held && !p.closed && p.bound(e.Flow) == 0 {
		best = p.pick(e.refused, here, e.large())
	}
	if best == nil {
		e.refused = 0
		p.needs(e)
		p.relieve(here)
		p.mu.Unlock()
		return false
	}
	var c credit
	e.yield(s, &c)
	p.giveBack(&c, e.host(), 1)
	m := best.takeCredits(e, nil, 0, c.slowStart)
	if !e.large() {
		// The XID of e is taken on this connection. The client's next XIDs may be taken
		// as well, so its next Calls follow e.
		e.Flow.seat = best
	}
	p.mu.Unlock()
	m.Dispatch(e, here)
	p.kick(here)
	return true
}

// Borrow takes a credit of connection m for e, which no client has sent and which has no Flow. It
// reports whether there was one. Done returns the credit.
func (s *Seat) Borrow(m Member, e *Entry) bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held || s.member != m || s.free() <= 0 {
		return false
	}
	s.takeCredits(e, nil, 0, 0)
	return true
}

// Spent reports whether every credit of connection m is in use.
func (s *Seat) Spent(m Member) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.member == m && s.inUse > 0 && s.free() <= 0
}
