package pool

// Update replaces the settings of a pool while it works, except Name, Loops, First, QueueLimit,
// SlowStart, Quota, Witness and Metrics. o must be valid. Update does not wait.
//
// A pool that now has more seats, or must not let them sleep any more, dials their connections.
// Connections that are too many, and
// connections to an endpoint that is not listed any more, get no more Calls and end after their
// last one. With renew the other connections are replaced too, because Dial makes them
// differently now. The pool replaces the connections one at a time: the next connection only
// when the previous one has a successor. So if the pool cannot connect any more, all
// connections but one stay.
func (p *Pool) Update(o Options, renew bool) {
	if err := o.validate(); err != nil {
		panic("BUG: " + err.Error())
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	o.Name, o.Loops, o.First, o.QueueLimit = p.opts.Name, p.opts.Loops, p.opts.First, p.opts.QueueLimit
	o.SlowStart, o.Metrics = p.opts.SlowStart, p.opts.Metrics
	o.Quota, o.Witness = p.opts.Quota, p.opts.Witness
	if p.ownHealth {
		o.Health = p.opts.Health
		o.Health.Set(o.Endpoints, false)
	}
	p.opts = o
	if renew {
		p.generation++
	}
	p.resize(o.Connections)
	p.renewNext()
	p.rebindAll()
	p.mu.Unlock()
	p.kick(Elsewhere) // for flows that have moved, and a share that has grown
}

// resize makes n the number of seats. The caller holds p.mu.
func (p *Pool) resize(n int) {
	for len(p.seats) > n {
		s := p.seats[len(p.seats)-1]
		p.seats = p.seats[:len(p.seats)-1]
		s.clearMember()
		s.retire()
		if !s.resting { // or it is being closed
			s.endWhenIdle()
		}
		if s.asleep {
			s.asleep = false
			p.asleep--
			p.startSeat(s) // for discarded
		}
	}
	for len(p.seats) < n {
		p.addSeat(len(p.seats))
	}
	p.queue.grow(n)
	p.fill()
	p.calm()
}
