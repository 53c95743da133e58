package pool

import "time"

// Steady flows
//
// A server whose duplicate request cache tells connections apart knows a Call that comes
// again only if it comes by the connection that it came by before, or by the next one of
// the same seat. So the Calls of a Steady flow have one seat, which Flow.Place tells and
// which is the same in another process with as many seats. When that has no credit, or no
// connection, they wait for it, in a queue of the seat's own.
//
// They do not wait for good. A seat that has been without a connection for steadyFor while
// another has one binds nobody until it has one again.

// stickyWait is how long a seat without a connection is waited for: a handshake whose first
// packet was lost takes a second longer.
const stickyWait = 3 * time.Second

// stickySeat is the seat that f's Calls have to go by; nil if any will do. p.mu is held.
func (p *Pool) stickySeat(f *Flow) *Seat {
	if !f.Sticky || len(p.seats) < 2 {
		return nil
	}
	s := p.seats[f.Hash%uint32(len(p.seats))]
	if s.absent() {
		return nil
	}
	return s
}

// absent reports that nobody is to wait for s to have a connection. pool.mu is held.
func (s *Seat) absent() bool {
	p := s.pool
	return s.member == nil && time.Since(s.since) > stickyWait && time.Since(p.firstUp) > stickyWait
}

// assignQueue chooses the queue of f, in which nothing waits, if its choice can differ: that of
// its home, or that of its loop. p.mu is held.
func (p *Pool) assignQueue(f *Flow) {
	f.seatQueue = 0
	if s := p.stickySeat(f); s != nil {
		f.seatQueue = 1 + s.index
	}
}

// releaseSticky has the Calls that wait for a seat which is away go by any, and reports whether
// there are any. p.mu is held.
func (p *Pool) releaseSticky() bool {
	for _, s := range p.seats {
		if p.queue.bySeat[s.index].n > 0 && s.absent() {
			return p.reassignQueues()
		}
	}
	return false
}

// reassignQueues has the Steady flows wait where they belong now, and reports whether that is
// elsewhere for any. It is called when a seat is away, or is not any more, and when there
// are more seats or fewer. p.mu is held.
func (p *Pool) reassignQueues() (moved bool) {
	var flows []*Flow
	for q := range p.queue.all {
		flows = append(flows, q.flows()...)
	}
	for _, f := range flows {
		if !f.Sticky {
			continue
		}
		was, list := f.seatQueue, p.queue.forget(f)
		p.assignQueue(f)
		for list != nil {
			e := list
			list = e.next
			p.queue.push(e, Elsewhere)
		}
		moved = moved || f.seatQueue != was
	}
	return moved
}
