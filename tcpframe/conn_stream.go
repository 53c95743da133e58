package tcpframe

import (
	"errors"
	"io"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A connStream is a Conn as its socket sees it: a loop.Stream.
type connStream Conn

func (s *connStream) Attached(loop.Socket) {
	c := (*Conn)(s)
	c.counters.conns.Add(1)
	if c.proxy != nil {
		c.state = announcing
		c.counters.proxies.Load().waiting.Add(1)
	} else {
		c.state = open
		c.handler.Opened(c)
	}
	c.watch()
}

func (s *connStream) Received(b []byte) { (*Conn)(s).received(b) }

func (s *connStream) Writable() {
	c := (*Conn)(s)
	c.blocked = false
	c.sock.FlushSoon()
}

// Flush ends a pass that touched the Conn.
func (s *connStream) Flush() {
	c := (*Conn)(s)
	c.parseHeld()
	c.write()
	if c.state == draining && !c.owes() && c.notifyClosed() {
		c.linger()
	}
	c.settle()
}

// settle makes the socket and the gauges follow the state at the end of the pass.
func (c *Conn) settle() {
	paused := c.state == open && c.paused()
	if c.tls != nil {
		paused = c.tls.settle(paused)
	} else {
		c.sock.SetPaused(paused || c.state == draining)
	}
	c.watch()
	if paused != c.sawPaused {
		if c.sawPaused = paused; paused {
			c.pausedAt = c.loop.Now()
			c.counters.paused.Add(1)
		} else {
			c.counters.paused.Add(-1)
			c.counters.pausedNs.Add(uint64(max(0, c.loop.Now()-c.pausedAt)))
		}
	}
	if c.copied > 0 {
		c.counters.copied.Add(uint64(c.copied))
		c.copied = 0
	}
	in := int64(c.have + len(c.held))
	if c.tls != nil {
		in += int64(c.tls.buffered())
	}
	if in != c.sawIn {
		c.counters.inbound.Add(in - c.sawIn)
		c.sawIn = in
	}
	if c.outbound != c.sawOutbound {
		c.counters.outbound.Add(c.outbound - c.sawOutbound)
		c.sawOutbound = c.outbound
	}
}

// Detached ends the Conn. The socket can still be written to.
func (s *connStream) Detached(err error) {
	c := (*Conn)(s)
	wasOpen := c.state == open
	if wasOpen {
		c.err = err
		if errors.Is(err, io.EOF) && c.split.begun() {
			c.err = io.ErrUnexpectedEOF
		}
	}
	if c.state <= draining && (errors.Is(err, io.EOF) || errors.Is(err, loop.ErrStopped)) {
		// The records that this pass has queued were not tried yet.
		c.state, c.blocked = ending, false
		c.write()
		if !c.owes() {
			c.notifyClosed()
		}
	}
	c.state = closed
	c.dropInput()
	c.dropQueue()
	c.settle()
	c.counters.conns.Add(-1)
	if c.proxy != nil && !c.proxy.admitted {
		c.unannounced(err)
		return // nobody has the Conn
	}
	if c.listener != nil {
		c.listener.leave(&c.listener.clients, c.RemoteAddr().Addr())
	}
	if c.tls == nil || c.tls.detached(wasOpen, err) {
		c.handler.Closed(c, c.err)
	}
}

// received handles the octets of one read.
func (c *Conn) received(b []byte) {
	c.active = c.loop.Now()
	c.rx += int64(len(b))
	c.counters.received.Add(uint64(len(b)))
	if c.state == announcing {
		b = c.announced(b)
	}
	if c.state != open || len(b) == 0 {
		return // the input is discarded
	}
	if c.awaits {
		c.awaits = false
		c.sock.FlushSoon()
		if c.handler.(InputHandler).Input(c); c.state != open {
			return
		}
	}
	if c.tls != nil {
		c.tls.received(b)
		if !c.sock.FlushPending() {
			c.settle()
		}
		return
	}
	if c.paused() || len(c.held) > 0 {
		// These octets were on their way when reading was paused, or reading was resumed
		// in this pass.
		c.hold(b)
		c.sock.FlushSoon()
		return
	}
	if rest := c.parse(b); len(rest) > 0 {
		c.hold(rest)
	} else if c.state == open && !c.paused() {
		c.fill()
	}
	if !c.sock.FlushPending() {
		c.settle()
	}
}

// hold keeps a copy of b until reading is resumed.
func (c *Conn) hold(b []byte) {
	c.held = append(c.held, b...)
	c.copied += len(b)
	c.loop.Hurry()
}

// parseHeld parses the octets that were held, once reading is resumed.
func (c *Conn) parseHeld() {
	if c.tls != nil {
		c.tls.openHeld()
		return
	}
	if len(c.held) == 0 || c.state != open || c.paused() {
		return
	}
	b := c.held
	c.held = nil // what parse returns will follow, and nothing else: StartTLS looks
	c.held = c.parse(b)
}

// write writes as much of the queue as the kernel takes, and then compares the rest
// with the limits.
func (c *Conn) write() {
	if c.tls != nil {
		c.tls.write()
	} else {
		c.writeQueue(c.tail)
	}
	if c.state < ending {
		c.limitOutbound()
	}
}
