package pool

import "time"

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

// pull dispatches queued Calls while the seat has free credits.
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

// ready returns a seat that has a free credit and for which a Call waits, or nil. The caller
// holds p.mu.
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

// next takes the next queued Call for seat s, and a credit for it. The caller holds p.mu.
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

// dispatch hands e, which was queued, to m.
func (p *Pool) dispatch(m Member, e *Entry, here int) {
	p.metrics.queued.Add(-1)
	p.metrics.waits.Observe(uint64(time.Since(e.queuedAt)))
	m.Dispatch(e, here)
}

// expire gives the owner the list of entries that begins with e.
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
