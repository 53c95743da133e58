package pool

// Flows with an only seat
//
// Some Calls must arrive in the order they were sent, and connections overtake each other. The
// owner of such a flow calls Flow.Follow with the Call that was sent last while any is outstanding,
// so that the next one follows it. A seat without a connection has nothing that a Call could
// follow, and any seat will do. The seat is that of a Call of the flow itself, so a flow never
// comes to use the seat of another pool.

// Follow keeps the Calls of f on the seat that e was dispatched to, as long as that has a
// connection. e is a Call of f that the caller owns and has not returned. With nil, f may use any
// seat. No Call of f may be waiting.
func (f *Flow) Follow(e *Entry) {
	switch {
	case e == nil:
		f.only = nil
	case e.Flow != f:
		panic("BUG: pool: a flow is to follow a Call of another one")
	default:
		f.only = e.credit.seat
	}
}

// chooses reports whether the flow may have to use one seat.
func (f *Flow) chooses() bool { return f.Sticky || f.only != nil }

// onlySeat returns the seat that the Calls of f have to follow others to, or nil. The caller holds
// p.mu.
func (p *Pool) onlySeat(f *Flow) *Seat {
	if s := f.only; s != nil && s.member != nil && !s.retired {
		return s
	}
	return nil
}

// Unbind lets the Calls of f use any seat, from the one that waits on. If it reports true, the
// caller has to call Kick. It is safe for concurrent use.
func (p *Pool) Unbind(f *Flow) (moved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.only = nil
	return f.active() && f.seatQueue > 0 && p.rebind(f)
}

// Kick dispatches Calls that Unbind has moved. here is the affinity of the calling loop.
func (p *Pool) Kick(here int) { p.kick(here) }

// rebind moves f, which waits, to the queue where it belongs now, and reports whether that is
// another one. The caller holds p.mu.
func (p *Pool) rebind(f *Flow) (moved bool) {
	was, list := f.seatQueue, p.queue.forget(f)
	p.assignQueue(f)
	for list != nil {
		e := list
		list = e.next
		p.queue.push(e, Elsewhere)
	}
	return f.seatQueue != was
}
