package pool

import "time"

// Submit dispatches e, or queues it. here is the affinity of the calling loop. e.Flow
// and e.Cost must be set. If Submit returns an error, e still belongs to the caller.
func (p *Pool) Submit(e *Entry, here int) error {
	now := time.Now()
	p.mu.Lock()
	m, _, keeps, err := p.submit(e, nil, here, now)
	p.mu.Unlock()
	switch {
	case err != nil:
		return err
	case m != nil:
		m.Dispatch(e, here)
		return nil
	}
	p.metrics.queued.Add(1)
	if keeps {
		p.metrics.shareWaits.Inc()
	}
	p.kick(here)
	return nil
}

// submit takes a credit for e and returns the connection to dispatch e to, or queues e and returns
// nil. If it takes one, it also takes credits for the first n Calls of the list that begins with behind, and the
// caller dispatches them to the same connection. If it queues e, the caller has to call kick without p.mu: e may go
// from the reserve, or may need another connection. keeps says that a credit is free which e may not have because of the
// share of its host. The caller holds p.mu.
func (p *Pool) submit(e, behind *Entry, here int, now time.Time) (m Member, n int, keeps bool, err error) {
	if p.closed {
		return nil, 0, false, ErrClosed
	}
	f := e.Flow
	p.settle(f)
	p.slowStart.Block(&p.slowed)
	r := p.room()
	if !p.held && p.admits(f, r) && p.part.Admits(&p.place) {
		if s := p.choose(e, here); s != nil {
			n = p.run(s, e, behind, here, r)
			s = p.divert(s, e)
			m = s.takeCredits(e, behind, n, p.slowStart.Dispatch())
			if p.asleep > 0 {
				p.relieveSeat(s, e, here)
			}
			return m, n, false, nil
		}
	}
	if p.queue.n >= p.opts.QueueLimit && !p.overflows(f.host()) {
		return nil, 0, false, errQueueFull
	}
	p.wait(e, here, now)
	return nil, 0, r.free > 0 && (p.part != nil || !p.within(f.host(), r)), nil
}

// wait queues e behind the other Calls of its flow. The caller holds p.mu.
func (p *Pool) wait(e *Entry, here int, now time.Time) {
	e.queuedAt = now
	p.needs(e)
	p.queue.push(e, here)
}

// run returns how many of the Calls in the list that begins with behind go to s with e, as if each was submitted by
// itself. They are small Calls of the same flow, as far as s has credits and the host has room in its window. r is
// the room that e finds. The caller holds p.mu.
func (p *Pool) run(s *Seat, e, behind *Entry, here int, r room) (n int) {
	f := e.Flow
	if behind == nil || behind.Flow != f || f.seatQueue == 0 && (f.seat != s || s.affinity != here) {
		return 0
	}
	for x := behind; n < s.free() && x != nil && x.Flow == f && x.follows(e); x = x.next {
		n++
	}
	return p.mostBehind(s, e, r, n)
}

// mostBehind returns how many of most small Calls of the flow of e may go to s behind e, as if each was dispatched by
// itself: as many as s has credits and the host has room in its window. r is the room that e finds. What is rare has no
// runs. The caller holds p.mu.
func (p *Pool) mostBehind(s *Seat, e *Entry, r room, most int) (n int) {
	h := e.Flow.host()
	if e.large() || !p.slowStart.Over() || p.part != nil || p.tryout != nil || p.asleep > 0 || !p.lately(h) {
		return 0
	}
	most = min(most, s.free()-1, r.free-r.reserve-1)
	if r.reserve == 0 {
		return most
	}
	now, spare := int(h.unproven), r.spare // unproven Calls of h
	old, replies := h.old(p.age), h.replies.Young(p.age)
	for n = min(most, max(0, old+replies-int(h.held))); n < most; n++ { // those before change neither
		was := now
		now = unproven(old, int(h.held)+n+1, replies)
		spare -= now - was
		if now > 0 && p.fills(now, spare) {
			break
		}
	}
	return n
}

// overflows reports whether a Call of h may wait although as many wait as may: h has fewer than its share of them. So
// a host that fills the queue has its own Calls refused. All of these Calls together are at most as many again. The
// caller holds p.mu.
func (p *Pool) overflows(h *Host) bool {
	limit, hosts := p.opts.QueueLimit, p.hosts
	if h.waiting == 0 {
		hosts++
	}
	return p.queue.n < 2*limit && h.queued() < max(1, limit/hosts)
}

// Requeue puts e back at the head of its flow, because its connection was lost or could
// not send it for now. Seat.Done has returned the credit of e. here is the affinity of
// the calling loop. A Call that was never sent has been waiting since it was first
// queued: if that is too long, Requeue returns an error.
func (p *Pool) Requeue(e *Entry, here int) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	switch now := time.Now(); {
	case e.queuedAt.IsZero():
		e.queuedAt = now
	case now.Sub(e.queuedAt) > p.opts.QueueWait:
		p.mu.Unlock()
		p.metrics.expired.Inc()
		return errQueueTimeout
	}
	p.settle(e.Flow)
	p.needs(e)
	p.queue.pushFront(e, here)
	p.mu.Unlock()
	p.metrics.queued.Add(1)
	p.kick(here)
	return nil
}

// Hold stops dispatching until Resume, because there is no memory for Replies. It returns
// false if dispatching was stopped already; otherwise the caller has to call Resume.
func (p *Pool) Hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.held
	p.held = true
	return !was
}

// Resume undoes Hold and dispatches queued Calls, until the memory is gone again. here is the affinity of the
// calling loop. A Call for another loop is the last one: whether there is memory for it, that loop finds out later.
func (p *Pool) Resume(here int) {
	p.mu.Lock()
	p.held = false
	p.mu.Unlock()
	p.kickUntil(here, true)
}

// Forget removes every queued Call of f, whose client is gone, and hands it to
// Owner.Expired with err.
func (p *Pool) Forget(f *Flow, err error) {
	p.mu.Lock()
	e := p.queue.forget(f)
	p.mu.Unlock()
	p.expire(e, err)
}

// Reweigh makes w the weight of f, which may have Calls waiting. Neither f nor its host spends more in this turn than
// the new weight allows. It is safe for concurrent use.
func (p *Pool) Reweigh(f *Flow, w int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.Weight = w
	if f.active() {
		f.turn.Deficit = min(f.turn.Deficit, max(f.gain(), f.price()))
		f.place.weigh()
	}
}
