package pool

import "time"

// Steady Calls
//
// A server whose duplicate request cache tells connections apart knows a Call that comes
// again only if it comes by the connection that it came by before, or by the next one of
// the same seat. So a Call that is marked Steady has one seat, which Flow.Place tells and
// which is the same in another process with as many seats. When that has no credit, or no
// connection, the Call waits for it, beside the queue: what waits there may go by any seat,
// and is not to wait for this one.
//
// It does not wait for good. A seat that has been without a connection for steadyFor while
// another has one binds nobody until it has one again.

// steadyFor is how long a seat without a connection is waited for: a handshake whose first
// packet was lost takes a second longer.
const steadyFor = 3 * time.Second

// home is the seat that e has to go by; nil if any will do. p.mu is held.
func (p *Pool) home(e *Entry) *Seat {
	if !e.Steady || len(p.seats) < 2 {
		return nil
	}
	s := p.seats[e.Flow.Place%uint32(len(p.seats))]
	if s.away() {
		return nil
	}
	return s
}

// away reports that nobody is to wait for s to have a connection. pool.mu is held.
func (s *Seat) away() bool {
	p := s.pool
	return s.member == nil && time.Since(s.since) > steadyFor && time.Since(p.up) > steadyFor
}

// park has e wait for seat s. p.mu is held.
func (p *Pool) park(s *Seat, e *Entry) {
	for len(p.parked) <= s.index {
		p.parked = append(p.parked, line{})
	}
	p.parked[s.index].push(e)
	p.waiting++
}

// unpark is the Call that has waited longest for s, or nil. p.mu is held.
func (p *Pool) unpark(s *Seat) *Entry {
	if p.waiting == 0 || s.index >= len(p.parked) || p.parked[s.index].head == nil || p.seats[s.index] != s {
		return nil
	}
	p.waiting--
	return p.parked[s.index].pop()
}

// release has those who wait for a seat that is away wait in the queue, or all. It reports
// whether there were any. p.mu is held.
func (p *Pool) release(all bool) (any bool) {
	for i := range p.parked {
		if p.parked[i].head == nil || !all && !p.seats[i].away() {
			continue
		}
		for p.parked[i].head != nil {
			p.waiting--
			p.queue.push(p.parked[i].pop(), Elsewhere)
		}
		any = true
	}
	return any
}

// eachParked takes out what take takes out of each line, linked by next. p.mu is held.
func (p *Pool) eachParked(take func(*line) *Entry) (list *Entry) {
	if p.waiting == 0 {
		return nil
	}
	for i := range p.parked {
		out := take(&p.parked[i])
		for e := out; e != nil; e = e.next {
			p.waiting--
		}
		list = join(out, list)
	}
	return list
}

// drain empties l.
func (l *line) drain() *Entry {
	list := l.head
	*l = line{}
	return list
}

// forget takes out what is f's.
func (l *line) forget(f *Flow) *Entry {
	var out, rest line
	for l.head != nil {
		if e := l.pop(); e.Flow == f {
			out.push(e)
		} else {
			rest.push(e)
		}
	}
	*l = rest
	return out.head
}

// kickSteady dispatches those who wait for a seat that can take them.
func (p *Pool) kickSteady(here int) {
	for i := 0; ; i++ {
		p.mu.Lock()
		for p.waiting > 0 && i < len(p.parked) && p.parked[i].head == nil {
			i++
		}
		if p.waiting == 0 || i >= len(p.parked) {
			p.mu.Unlock()
			return
		}
		s := p.seats[i]
		p.mu.Unlock()
		s.pull(here)
	}
}
