package pool

// Flows with an only seat
//
// Some Calls must arrive in the order they were sent, and connections overtake each other. The
// owner of such a flow sets Flow.Only to the seat that has the Calls which are still outstanding,
// so that the next one follows them. A seat without a connection has nothing that a Call could
// follow, and any seat will do.

// chooses reports whether the flow may have to use one seat.
func (f *Flow) chooses() bool { return f.Sticky || f.Only != nil }

// onlySeat returns the seat that the Calls of f have to follow others to, or nil. The caller holds
// p.mu.
func (p *Pool) onlySeat(f *Flow) *Seat {
	if s := f.Only; s != nil && s.member != nil && !s.retired {
		return s
	}
	return nil
}

// Unbind lets the Calls of f use any seat, from the one that waits on. If it reports true, the
// caller has to call Kick. It is safe for concurrent use.
func (p *Pool) Unbind(f *Flow) (moved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.Only = nil
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
