package pool

import (
	"slices"
	"time"
)

// Sticky flows
//
// Some servers tell connections apart in their duplicate request cache. Such a server
// recognises a retransmitted Call only if it comes on the same connection as before, or
// on the next connection of the same seat. So all Calls of a sticky flow use one seat.
// Flow.Hash chooses it, and chooses the same one in another process with as many seats.
// While that seat has no free credit, or no connection, the Calls wait in a queue of the
// seat's own.
//
// A seat that sleeps is woken for them, and the number of seats from which the hash chooses stays the
// same. They do not wait for ever. A seat that has had no connection for stickyWait while
// another seat has one is absent, and its sticky flows may use any seat until it is back.

// stickyWait is how long sticky flows wait for a seat that has no connection. A
// handshake whose first packet was lost takes a second longer.
const stickyWait = 3 * time.Second

// stickySeat returns the seat that the Calls of f have to use, or nil if they may use any. The
// caller holds p.mu.
func (p *Pool) stickySeat(f *Flow) *Seat {
	if s := p.onlySeat(f); s != nil {
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
	if s := p.stickySeat(f); s != nil {
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
