package tcpframe

import "time"

// memoryTimeout bounds how long an incomplete record waits for memory. It ends the
// deadlock in which incomplete records hold all memory.
const memoryTimeout = 30 * time.Second

const (
	// stallOctets must arrive of an incomplete record within each StallTimeout.
	stallOctets = 4096
	// sendOctets must leave the queue within each SendTimeout, unless the queue empties.
	// With a smaller number a peer that reads an octet now and then would keep megabytes
	// queued for ever.
	sendOctets = 64 << 10
)

// A stallCheck is the progress of an incomplete record when StallTimeout began to count.
type stallCheck struct {
	at      int64 // when StallTimeout began to count; 0 if it does not
	rx      int64
	records uint64
}

// sweep checks the timeouts at time now, once per tick.
func (s *connStream) sweep(now int64) {
	c, o := (*Conn)(s), &s.opts
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
	c.sweepStall(now)
	switch {
	case c.record != nil && c.why&whyMemory != 0 && over(now, c.memSince, c.memoryTimeout()):
		c.refuse(timedOut(reasonMemory, int64(c.memWant), c.memoryTimeout()))
	case c.head != nil && over(now, c.outSince, o.SendTimeout):
		c.refuse(timedOut(reasonUnread, c.outbound, o.SendTimeout))
	case c.head == nil && !c.paused() && over(now, c.active, o.IdleTimeout) && !c.busy():
		c.refuse(timedOut(reasonIdle, 0, o.IdleTimeout))
	}
}

// sweepStall closes the connection when an incomplete record makes no progress. The time
// in which this side has paused reading does not count.
func (c *Conn) sweepStall(now int64) {
	switch {
	case !c.split.begun() || c.paused():
		c.stall.at = 0
	case c.stall.at == 0 || c.records != c.stall.records || c.rx-c.stall.rx >= stallOctets:
		c.stall = stallCheck{at: now, rx: c.rx, records: c.records}
	case over(now, c.stall.at, c.opts.StallTimeout):
		c.refuse(timedOut(reasonStalled, int64(c.have), c.opts.StallTimeout))
	}
}

// over reports whether limit has passed since the time since. A limit of zero or less
// never passes.
func over(now, since int64, limit time.Duration) bool {
	return limit > 0 && now-since > int64(limit)
}

func (c *Conn) memoryTimeout() time.Duration { return c.Loop().engine.memoryTimeout }

func (c *Conn) busy() bool {
	h, ok := c.handler.(BusyHandler)
	return ok && h.Busy()
}

func timedOut(r reason, value int64, limit time.Duration) *recordError {
	return &recordError{reason: r, value: value, limit: int64(limit)}
}
