package tcpframe

import (
	"time"
)

// closeTimeout bounds how long Close takes to write the queue, send FIN and receive the
// peer's FIN.
const closeTimeout = 5 * time.Second

// Close ends the connection in order. It stops reading, writes the records that are
// queued, sends close_notify if the connection has TLS, sends FIN, waits for the peer's FIN, for 5 s at most, and then calls
// Closed(err). Records that are sent after Close are dropped.
func (c *Conn) Close(err error) {
	switch {
	case c.state != open:
	case c.Securing():
		c.Abort(err) // nothing can be sent
	default:
		c.drain(err, closeTimeout)
	}
}

// drain begins the end in order, which takes no longer than timeout.
func (c *Conn) drain(err error, timeout time.Duration) {
	c.state, c.err = draining, err
	c.due = c.loop.Now() + int64(timeout)
	c.dropInput()
	c.sock.FlushSoon()
}

// Abort ends the connection with RST and does not write the records that are queued.
func (c *Conn) Abort(err error) {
	if c.state >= ending {
		return
	}
	c.state, c.err = ending, err
	c.sock.Abort()
}

// linger sends FIN. To close the socket now would send RST if the peer has written
// anything since, and the RST would destroy Replies that the peer has not read.
func (c *Conn) linger() {
	c.state = lingering
	if err := c.sock.CloseWrite(); err != nil {
		c.endSocket()
	}
}

// refuse closes the connection at once because the peer exceeded a limit.
func (c *Conn) refuse(err *recordError) {
	if c.state >= ending {
		return
	}
	c.counters.closed(c.RemoteAddr(), err)
	c.fail(err)
}

// fail closes the connection at once.
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

// dropInput releases the octets that were received and not delivered.
func (c *Conn) dropInput() {
	c.dropRecord()
	c.held = nil
}

// dropRecord gives the memory of the incomplete record back.
func (c *Conn) dropRecord() {
	if c.record != nil {
		c.memory.Return(c.record)
		c.record, c.buf = nil, nil
	}
	c.have = 0
}
