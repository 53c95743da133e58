package pool

import "slices"

// Update replaces the settings of a pool while it works. Name, Loops, First,
// QueueLimit, SlowStart and Metrics stay. More connections are begun; fewer, and those to an
// endpoint that is not listed any more, take no more Calls and end after their last.
// renew replaces the others too, because what Dial makes is different now. What is
// replaced is so one after the other, the next when the one before has a successor: if
// nothing can be connected any more, all connections but one go on. It does not wait.
// o must be valid.
func (p *Pool) Update(o Options, renew bool) {
	if err := o.Validate(); err != nil {
		panic("BUG: " + err.Error())
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	o.Name, o.Loops, o.First, o.QueueLimit, o.SlowStart, o.Metrics = p.opts.Name, p.opts.Loops, p.opts.First, p.opts.QueueLimit, p.slowStart, p.opts.Metrics
	if p.ownHealth {
		o.Health = p.opts.Health
		o.Health.Set(o.Endpoints, false)
	}
	p.opts = o
	if renew {
		p.generation++
	}
	var ends []idleConn
	for len(p.seats) > o.Connections {
		s := p.seats[len(p.seats)-1]
		p.seats = p.seats[:len(p.seats)-1]
		s.clearMember()
		s.retire()
		s.closeWhenIdle = true
		ends = append(ends, s.toClose())
	}
	for len(p.seats) < o.Connections {
		s := p.newSeat(len(p.seats))
		p.seats = append(p.seats, s)
		if p.ctx != nil {
			p.startSeat(s)
		}
	}
	ends = append(ends, p.renewNext())
	for len(p.queue.bySeat) < len(p.seats) {
		p.queue.bySeat = append(p.queue.bySeat, queue{})
	}
	moved := p.reassignQueues()
	p.mu.Unlock()
	for _, e := range ends {
		e.close()
	}
	p.slowStart.wake(Elsewhere)
	if moved {
		p.kick(Elsewhere)
	}
}

// Reweigh makes w the weight of f, whatever f has waiting. Any goroutine.
func (p *Pool) Reweigh(f *Flow, w int) {
	p.mu.Lock()
	p.queue.reweigh(f, w)
	p.mu.Unlock()
}

// options are the settings that hold now.
func (p *Pool) options() Options {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opts
}

// An idleConn is a connection to be closed when the lock is released, or nothing.
type idleConn struct{ m Member }

func (e idleConn) close() {
	if e.m != nil {
		e.m.Close(ErrRetired)
	}
}

// toClose is the connection of a seat that Update took away, when its last Call has
// ended. It is told once. pool.mu is held.
func (s *Seat) toClose() idleConn {
	if !s.closeWhenIdle || s.inUse > 0 || s.open == nil {
		return idleConn{}
	}
	s.closeWhenIdle = false
	return idleConn{s.open}
}

// stale reports whether the seat has a connection that would not be made now.
// pool.mu is held.
func (s *Seat) stale() bool {
	return s.member != nil && (s.generation != s.pool.generation || !slices.Contains(s.pool.opts.Endpoints, s.endpoint))
}

// renewNext puts another seat in the place of the next one that is stale, unless the one
// before has not come up. pool.mu is held.
func (p *Pool) renewNext() idleConn {
	if p.closed || p.successor != nil && !p.successor.retired && p.successor.member == nil {
		return idleConn{}
	}
	p.successor = nil
	for _, s := range p.seats {
		if s.stale() {
			s.closeWhenIdle = true
			p.successor = s.supersede()
			return s.toClose()
		}
	}
	return idleConn{}
}
