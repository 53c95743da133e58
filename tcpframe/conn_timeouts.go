package tcpframe

import (
	"slices"
	"time"
)

const (
	// stallOctets must arrive of an incomplete record within each StallTimeout.
	stallOctets = 4096
	// sendOctets must leave the queue within each SendTimeout, unless the queue empties.
	// With a smaller number a peer that reads an octet now and then would keep megabytes
	// queued for ever.
	sendOctets = 64 << 10
)

// watch makes the loop look at the timeouts of the connection as long as one can pass. Most of
// thousands of connections have none: nothing of a record has arrived, and nothing is queued.
func (c *Conn) watch() {
	if !c.timed && c.mayPass() {
		c.timed = true
		l := c.loop
		l.timed = append(l.timed, c)
	}
}

// mayPass reports whether a timeout can pass.
func (c *Conn) mayPass() bool {
	switch c.state {
	case open:
		return c.owes() || c.begun() || c.Securing() || c.why&whyMemory != 0 || c.opts.SilentTimeout > 0 || c.opts.IdleTimeout > 0
	case announcing, draining, lingering:
		return true
	}
	return false
}

// checkTimeouts is called once per tick while the connection is watched.
func (c *Conn) checkTimeouts(now int64) {
	o := c.opts
	if c.state == announcing {
		if now > c.proxy.due {
			c.notAnnounced(reasonProxyTimeout, errNoHeader)
		}
		return
	}
	if c.state == draining || c.state == lingering {
		if now > c.due {
			c.endSocket()
		}
		return
	}
	if limit := o.SilentTimeout; limit > 0 && c.sock.Silent() >= silentFor(limit) {
		err := timedOut(reasonSilent, 0, limit)
		c.counters.closed(c.RemoteAddr(), err)
		c.Abort(err) // there is no peer to read the rest of the queue
		return
	}
	if c.Securing() {
		c.tls.checkTimeout(now)
		return
	}
	c.sweepStall(now)
	switch {
	case (c.record != nil || c.listener != nil) && c.why&whyMemory != 0 && over(now, c.memSince, c.loop.memoryTimeout):
		c.starve(timedOut(reasonMemory, int64(c.memWant), c.loop.memoryTimeout))
	case c.owes() && over(now, c.outSince, o.SendTimeout):
		c.refuse(timedOut(reasonUnread, c.outbound, o.SendTimeout))
	case !c.owes() && !c.paused() && over(now, c.active, o.IdleTimeout) && !c.busy():
		c.refuse(timedOut(reasonIdle, 0, o.IdleTimeout))
	}
}

// starve ends the wait of an incomplete record for memory.
func (c *Conn) starve(err *recordError) {
	c.why &^= whyMemory
	c.memSince = 0
	c.fault(err)
	c.sock.FlushSoon()
}

// sweepStall closes the connection when an incomplete record makes too little progress, or takes too long.
// The time in which this side has paused reading does not count.
func (c *Conn) sweepStall(now int64) {
	s := &c.stall
	switch {
	case !c.begun():
		s.seen = 0
		return
	case s.seen == 0 || c.records != s.records:
		*s = stallCheck{seen: now, rx: c.progressed(), records: c.records}
		return
	case !c.paused():
		s.taken += now - s.seen
		s.spent += now - s.seen
	}
	s.seen = now
	if rx := c.progressed(); rx-s.rx >= c.progress() {
		s.spent, s.rx = 0, rx
	}
	switch {
	case over(s.spent, 0, c.opts.StallTimeout):
		c.refuse(timedOut(reasonStalled, int64(c.have), c.opts.StallTimeout))
	case over(s.taken, 0, c.opts.RecordTimeout):
		c.refuse(timedOut(reasonRecord, int64(c.have), c.opts.RecordTimeout))
	}
}

// begun reports whether a part of a record, of RPC or of TLS, has arrived.
func (c *Conn) begun() bool { return c.split.begun() || c.tls != nil && c.tls.partial() }

// progressed returns how many octets of records have arrived. Behind a handshake only octets of RPC count: those of
// TLS records may be padding.
func (c *Conn) progressed() int64 {
	if c.tls != nil && c.tls.stage >= secured {
		return c.tls.rx
	}
	return c.rx
}

// progress returns how many octets of an incomplete record must arrive within each
// StallTimeout.
func (c *Conn) progress() int64 {
	if len(c.buf) < 2*firstLease {
		return stallOctets
	}
	return max(stallOctets, int64(float64(c.opts.Pace)*c.opts.StallTimeout.Seconds()))
}

// over reports whether limit has passed since the time since. A limit of zero or less
// never passes.
func over(now, since int64, limit time.Duration) bool {
	return limit > 0 && now-since > int64(limit)
}

func (c *Conn) busy() bool {
	h, ok := c.handler.(BusyHandler)
	return ok && h.Busy()
}

func timedOut(r reason, value int64, limit time.Duration) *recordError {
	return &recordError{reason: r, value: value, limit: int64(limit)}
}

// A sweepTask is a Loop as the Task that sweeps the loop's connections.
type sweepTask Loop

func (t *sweepTask) Run() { l := (*Loop)(t); l.sweep(l.Now()) }

// sweep checks the timeouts of the connections that have any, once per tick.
func (l *Loop) sweep(now int64) {
	l.Loop.Sweep()
	l.timed = slices.DeleteFunc(l.timed, func(c *Conn) bool {
		if c.timed = !c.sock.Closing(); c.timed {
			c.checkTimeouts(now)
			c.timed = c.mayPass()
		}
		return !c.timed
	})
}
