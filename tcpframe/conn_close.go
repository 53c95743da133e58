package tcpframe

import (
	"errors"
	"io"
	"time"
)

// Close ends the connection in good order: nothing more is read, what is queued
// is written, FIN is sent, and after the peer's FIN, or 5 s at the latest,
// Closed(err) is called. Sends that follow are dropped.
func (c *Conn) Close(err error) {
	if c.state != open {
		return
	}
	c.state, c.err = draining, err
	c.due = c.Loop().Now() + int64(closeTimeout)
	c.dropInput()
	c.sock.FlushSoon()
}

// Abort ends the connection with RST; what is queued is not written.
func (c *Conn) Abort(err error) {
	if c.state >= ending {
		return
	}
	c.state, c.err = ending, err
	c.sock.Abort()
}

// linger sends FIN. Closing the socket at once would send RST if the peer has
// written anything since, and RST destroys replies that it has not read.
func (c *Conn) linger() {
	c.state = lingering
	if err := c.sock.CloseWrite(); err != nil {
		c.endSocket()
	}
}

// refuse ends the connection for what the peer did.
func (c *Conn) refuse(err *recordError) {
	if c.state >= ending {
		return
	}
	c.counters.refuse(c.RemoteAddr(), err.reason, err)
	c.fail(err)
}

// fail ends the connection at once.
func (c *Conn) fail(err error) {
	if c.state >= ending {
		return
	}
	if c.state == open {
		c.err = err
	}
	c.endSocket()
}

func (c *Conn) endSocket() {
	c.state = ending
	c.sock.Close()
}

// Detached is the end; the socket can still be written to.
func (s *connStream) Detached(err error) {
	c := (*Conn)(s)
	if c.state == open {
		c.err = err
		if errors.Is(err, io.EOF) && c.split.begun() {
			c.err = io.ErrUnexpectedEOF
		}
	}
	if c.state <= draining && (errors.Is(err, io.EOF) || errors.Is(err, errStopped)) {
		// What was queued in this pass has not been tried yet.
		c.state, c.blocked = ending, false
		c.write()
	}
	c.state = closed
	c.dropInput()
	c.dropQueue()
	c.settle()
	c.counters.conns.Add(-1)
	if c.listener != nil {
		c.listener.leave(c.RemoteAddr().Addr())
	}
	c.handler.Closed(c, c.err)
}

// dropInput releases what was received and not delivered.
func (c *Conn) dropInput() {
	if c.record != nil {
		c.record.Release()
		c.record, c.buf = nil, nil
	}
	c.have = 0
	c.dropHold()
}

// A stallCheck watches a begun record.
type stallCheck struct {
	at      int64 // when this look began; 0 for none
	rx      int64
	records uint64
}

const (
	// stallOctets is what must come of a begun record in a StallTimeout.
	stallOctets = 4096
	// sendOctets is what must go of a queue in a SendTimeout, unless all of it
	// goes. An octet now and then would keep megabytes waiting for ever.
	sendOctets = 64 << 10
)

// sweep looks at the timeouts, once per tick.
func (s *connStream) sweep(now int64) {
	c, o := (*Conn)(s), &s.opts
	over := func(since int64, limit time.Duration) bool {
		return limit > 0 && now-since > int64(limit)
	}
	if c.state == draining || c.state == lingering {
		if now > c.due {
			c.endSocket()
		}
		return
	}
	if limit := o.SilentTimeout; limit > 0 && c.sock.Silent() >= silentFor(limit) {
		err := timedOut(reasonSilent, 0, limit)
		c.counters.refuse(c.RemoteAddr(), err.reason, err)
		c.Abort(err) // nobody is there to take the rest
		return
	}
	switch paused := c.paused(); {
	case !c.split.begun() || paused:
		c.stall.at = 0
	case c.stall.at == 0 || c.records != c.stall.records || c.rx-c.stall.rx >= stallOctets:
		c.stall = stallCheck{at: now, rx: c.rx, records: c.records}
	case over(c.stall.at, o.StallTimeout):
		c.refuse(timedOut(reasonStalled, int64(c.have), o.StallTimeout))
	}
	switch {
	case c.record != nil && c.why&whyMemory != 0 && over(c.memSince, o.MemoryTimeout):
		c.refuse(timedOut(reasonMemory, int64(c.memWant), o.MemoryTimeout))
	case c.head != nil && over(c.outSince, o.SendTimeout):
		c.refuse(timedOut(reasonUnread, c.outbound, o.SendTimeout))
	case c.head == nil && !c.paused() && over(c.active, o.IdleTimeout) && !c.busy():
		c.refuse(timedOut(reasonIdle, 0, o.IdleTimeout))
	}
}

func (c *Conn) busy() bool {
	h, ok := c.handler.(BusyHandler)
	return ok && h.Busy()
}

func timedOut(r reason, value int64, limit time.Duration) *recordError {
	return &recordError{reason: r, value: value, limit: int64(limit)}
}
