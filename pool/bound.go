package pool

import "time"

// Flows that are bound to a seat
//
// The Calls of a flow may have to use one seat. While that has no free credit, they wait in a queue of the seat's
// own, in turn with the others, and a seat that sleeps is woken for them. There are two reasons.
//
// A sticky flow: some servers tell connections apart in their duplicate request cache. Such a server
// recognises a retransmitted Call only if it comes on the same connection as before, or
// on the next connection of the same seat. Flow.Hash chooses the seat, and chooses the same one in another
// process with as many seats. A seat that has had no connection for stickyWait while
// another seat has one is absent, and its sticky flows may use any seat until it is back.
//
// An ordered flow: some Calls must arrive in the order they were sent, and connections overtake each other. The
// owner calls Flow.Follow with the Call that was sent last while any is outstanding,
// so that the next one follows it. A seat without a connection has nothing that a Call could
// follow, and any seat will do.

// stickyWait is how long sticky flows wait for a seat that has no connection. A
// handshake whose first packet was lost takes a second longer.
const stickyWait = 3 * time.Second

// bound returns 1 + the index of the seat that the Calls of f have to use, or 0 if they may use any. The caller holds
// p.mu.
func (p *Pool) bound(f *Flow) int32 {
	if s := f.only; s != nil && s.member != nil && !s.retired {
		return int32(1 + s.index)
	}
	if !f.Sticky || len(p.seats) < 2 {
		return 0
	}
	s := p.stickySeat(f.Hash)
	if s.absent() {
		s.used = p.age // the seat goes on trying, so that the flow can return to it
		return 0
	}
	return int32(1 + s.index)
}

// stickySeat returns the seat that a hash chooses. The caller holds p.mu.
func (p *Pool) stickySeat(hash uint32) *Seat { return p.seats[hash%uint32(len(p.seats))] }

// StickyLoop returns the affinity of the connections that carry the Calls of a sticky flow with this hash.
func (p *Pool) StickyLoop(hash uint32) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stickySeat(hash).affinity
}

// absent reports whether sticky flows do not wait for s any more. The caller holds pool.mu.
func (s *Seat) absent() bool {
	p := s.pool
	return s.member == nil && !s.asleep && time.Since(s.since) > stickyWait && time.Since(p.firstUp) > stickyWait
}

// settle chooses the queue for the next Call of f, if none waits. The caller holds p.mu.
func (p *Pool) settle(f *Flow) {
	if !f.active() {
		f.seatQueue = p.bound(f)
	}
}

// rebindAll moves the flows that wait to the queues where they belong now. It is called when a seat may have become
// absent or has come back, and when the number of seats has changed. The caller holds p.mu.
func (p *Pool) rebindAll() {
	for _, f := range p.queue.waiting() {
		p.rebind(f)
	}
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

// Unbind lets the Calls of f use any seat, from the one that waits on. If it reports true, the
// caller has to call Kick. It is safe for concurrent use.
func (p *Pool) Unbind(f *Flow) (moved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.only = nil
	return f.active() && p.rebind(f)
}

// Kick dispatches Calls that Unbind has moved. here is the affinity of the calling loop.
func (p *Pool) Kick(here int) { p.kick(here) }

// rebind moves f, which waits, to the queue where it belongs now, and reports whether that is
// another one. The caller holds p.mu.
func (p *Pool) rebind(f *Flow) (moved bool) {
	to := p.bound(f)
	if to == f.seatQueue {
		return false
	}
	list := p.queue.forget(f)
	f.seatQueue = to
	for list != nil {
		e := list
		list = e.next
		p.queue.push(e, Elsewhere)
	}
	return true
}
