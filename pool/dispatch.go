package pool

// kick dispatches queued Calls while credits are free.
func (p *Pool) kick(here int) {
	for {
		p.mu.Lock()
		m, e := p.nextAny(here)
		p.mu.Unlock()
		if e == nil {
			p.part.wake(here) // there may be room since
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
		if e == nil && p.asleep > 0 && p.queue.n > 0 && s.member != nil {
			p.relieveQueue(here)
		}
		p.mu.Unlock()
		if e == nil {
			p.part.wake(here) // there may be room since
			return
		}
		p.dispatch(m, e, here)
	}
}

// nextAny takes the next queued Call for any seat, and a credit for it. The caller holds p.mu.
func (p *Pool) nextAny(here int) (Member, *Entry) {
	if p.queue.n == 0 {
		return nil, nil
	}
	if p.queue.anySeat > 0 {
		if s := p.pick(here, false); s != nil {
			if m, e := p.next(s); e != nil {
				return m, e
			}
		}
	}
	for _, s := range p.seats {
		if p.queue.bySeat[s.index].n > 0 {
			if m, e := p.next(s); e != nil {
				return m, e
			}
		}
	}
	return nil, nil
}

// next takes the next queued Call for seat s, and a credit for it. The caller holds p.mu.
func (p *Pool) next(s *Seat) (Member, *Entry) {
	if p.held || p.closed || s.free() <= 0 || !p.queue.waitsFor(s.index) || !p.part.admits(p) {
		return nil, nil
	}
	p.slowStart.block(p) // before window, or a Reply in between would not wake p
	w := p.window()
	if w.free <= 0 {
		return nil, nil
	}
	e, t := p.take(s, w)
	if e == nil {
		return nil, nil
	}
	return p.divert(s, e).takeCredit(e, t, p.slowStart.dispatch()), e
}

// dispatch hands e, which was queued, to m.
func (p *Pool) dispatch(m Member, e *Entry, here int) {
	p.metrics.queued.Add(-1)
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
