package pool

import "time"

// Endpoints that a Call has to try
//
// An endpoint that was ejected because it answers NULL Calls alone (pool/endpoints) is tried with a Call. A seat that
// has a connection elsewhere keeps it for all other Calls meanwhile.

// leaveNullOnly replaces the connections of endpoints.Health.IsNullOnly. Each ends after its last Call.
func (p *Pool) leaveNullOnly() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.seats {
		if !p.closed && s.member != nil && p.opts.Health.IsNullOnly(s.endpoint, s.dialled) {
			s.supersede()
			s.endWhenIdle()
		}
	}
}

// Overdue reports that a Call of a client on the seat's connection has had no answer for so long, which is as long as
// it may take. It reports whether the connection is to be closed at once, because another endpoint, or another
// address of this one, may answer: this one has answered no other Call meanwhile. It is safe for concurrent use.
func (s *Seat) Overdue(wait time.Duration) bool {
	p := s.pool
	p.mu.Lock()
	h, endpoint, other := p.opts.Health, s.endpoint, s.others && s.lastAnswer == 0
	p.mu.Unlock()
	if h.Overdue(endpoint, wait) {
		p.leaveNullOnly()
		return true
	}
	return other
}

// noteAnswer notes that a Call of a client was answered in the present age. The caller holds pool.mu.
func (s *Seat) noteAnswer() {
	s.lastAnswer = s.pool.age
	select {
	case s.answers <- struct{}{}:
	default:
	}
}

// divert returns the seat that e, which may go to s, goes to: a connection that waits for a Call to try its endpoint,
// if there is one and e may take any connection and be sent again, otherwise s. The caller holds p.mu.
func (p *Pool) divert(s *Seat, e *Entry) *Seat {
	t := p.tryout
	if t == nil || t.carried || e.Aside || !e.Repeatable || e.large() || e.Flow.Sticky || e.Flow.seatQueue > 0 || e.Flow.Ordered {
		return s
	}
	return t
}
