package pool

import (
	"slices"
	"time"
)

// Flows that are bound to a seat
//
// The Calls of a flow may have to use one seat. While that has no free credit, they wait in a queue of the seat's
// own, in turn with the others. There are two reasons.
//
// A sticky flow: some servers tell connections apart in their duplicate request cache. Such a server
// recognises a retransmitted Call only if it comes on the same connection as before, or
// on the next connection of the same seat. Flow.Hash chooses the seat, and chooses the same one in another
// process with as many seats. A seat that sleeps is woken for them, and the number of seats from which
// the hash chooses stays the same. They do not wait for ever: a seat that has had no connection for stickyWait while
// another seat has one is absent, and its sticky flows may use any seat until it is back.
//
// An ordered flow: some Calls must arrive in the order they were sent, and connections overtake each other. The
// owner calls Flow.Follow with the Call that was sent last while any is outstanding,
// so that the next one follows it. A seat without a connection has nothing that a Call could
// follow, and any seat will do. The seat is that of a Call of the flow itself, so a flow never
// comes to use the seat of another pool.

// stickyWait is how long sticky flows wait for a seat that has no connection. A
// handshake whose first packet was lost takes a second longer.
const stickyWait = 3 * time.Second

// boundSeat returns the seat that the Calls of f have to use, or nil if they may use any. The
// caller holds p.mu.
func (p *Pool) boundSeat(f *Flow) *Seat {
	if s := f.only; s != nil && s.member != nil && !s.retired {
		return s
	}
	if !f.Sticky || len(p.seats) < 2 {
		return nil
	}
	s := p.seats[f.Hash%uint32(len(p.seats))]
	if s.absent() {
		s.used = p.age // the seat goes on trying, so that the flow can return to it
		return nil
	}
	return s
}

// StickyLoop returns the affinity of the connections that carry the Calls of a sticky flow with this hash.
func (p *Pool) StickyLoop(hash uint32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seats[hash%uint32(len(p.seats))].affinity
}

// absent reports whether sticky flows do not wait for s any more. The caller holds pool.mu.
func (s *Seat) absent() bool {
	p := s.pool
	return s.member == nil && !s.asleep && time.Since(s.since) > stickyWait && time.Since(p.firstUp) > stickyWait
}

// assignQueue chooses the queue of its sticky seat or of its client's loop for f. No Call of f
// may be waiting. The caller holds p.mu.
func (p *Pool) assignQueue(f *Flow) {
	f.seatQueue = 0
	if s := p.boundSeat(f); s != nil {
		f.seatQueue = int32(1 + s.index)
	}
}

// settle chooses the queue for the next Call of f, if none waits. A flow that has had to use a seat
// is not bound to it any more when it need not: the seat may be gone. The caller holds p.mu.
func (p *Pool) settle(f *Flow) {
	if (f.chooses() || f.seatQueue > 0) && !f.active() {
		p.assignQueue(f)
	}
}

// releaseSticky lets the Calls that wait for an absent seat use any, and reports whether there
// are such Calls. The caller holds p.mu.
func (p *Pool) releaseSticky() bool {
	for _, s := range p.seats {
		if p.queue.bySeat[s.index].n > 0 && s.absent() {
			return p.reassignQueues()
		}
	}
	return false
}

// reassignQueues moves the sticky flows that wait to the queues where they belong now, and
// reports whether any has changed its queue. It is called when a seat becomes absent or comes
// back, and when the number of seats has changed. The caller holds p.mu.
func (p *Pool) reassignQueues() (moved bool) {
	var flows []*Flow
	for q := range p.queue.all {
		flows = slices.AppendSeq(flows, q.flows)
	}
	for _, f := range flows {
		if !f.chooses() {
			continue
		}
		moved = p.rebind(f) || moved
	}
	if p.asleep > 0 {
		p.wakeSticky()
	}
	return moved
}

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
