package iwarp

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// closing closes the socket, or one direction of it, if the qp's state demands that.
func (c *conn) closing() {
	if c.gone {
		return
	}
	q := c.qp
	if q.state == stateClosing && !q.fin && q.drained() {
		q.finish()
	}
	switch {
	case q.state == stateError:
		// The peer sent a Terminate, or the socket failed. Close sends FIN after the
		// octets that the kernel has. A full socket would delay that, so it is reset.
		if !c.finSent {
			c.finSent = true
			if c.blocked {
				c.sock.Abort()
			} else {
				c.sock.Close()
			}
		}
	case q.state == stateTerminate && q.tx.termSent && q.tx.batch == nil && !c.finSent:
		// Closing now, with octets unread, would make the kernel send RST, and that
		// can overtake the Terminate.
		c.sendFIN(terminateDrain)
	case q.state == stateTerminate && c.deadline.IsZero():
		c.expire(terminateWrite)
	case q.state == stateClosing && q.fin && !c.finSent:
		c.sendFIN(c.p.opts.CloseTimeout)
	case q.state == stateClosing && c.deadline.IsZero():
		c.expire(c.p.opts.CloseTimeout)
	}
}

// sendFIN closes our direction. The peer's FIN closes the other one, or tick resets the
// connection after d.
func (c *conn) sendFIN(d time.Duration) {
	c.finSent = true
	if err := c.sock.CloseWrite(); err != nil {
		c.sock.Close()
		return
	}
	if c.qp.state == stateTerminate || c.deadline.IsZero() {
		c.expire(d)
	}
}

// expire sets the deadline of closing to d from now. Without a deadline closing may
// last as long as the peer likes.
func (c *conn) expire(d time.Duration) {
	if d <= 0 {
		return
	}
	c.deadline = time.Now().Add(d)
	c.timer.Reset(d)
}

// deliver calls the ULP with its completions, and with Closed once the qp no longer
// uses the ULP's memory. It reports whether it called the ULP.
func (c *conn) deliver() bool {
	if c.closed {
		c.qp.take()
		return false
	}
	cs := c.qp.take()
	took := c.qp.took
	c.qp.took = 0
	c.unanswered -= int(took)
	if len(cs) > 0 || (c.copied || took > 0) && !c.qp.ended {
		c.copied = false
		for i := range cs {
			if cs[i].Op == fabric.OpReceive {
				c.unanswered--
			}
		}
		c.h.Completed(cs)
		clear(cs)
		return true
	}
	// An orderly close waits for the peer's FIN, which shows that every message has
	// arrived.
	if c.qp.ended && (c.gone || c.qp.state != stateClosing) {
		c.end()
		return true
	}
	return false
}

// end calls Handler.Closed.
func (c *conn) end() {
	c.closed = true
	err := c.qp.err
	if c.asked {
		err = c.reason
	} else {
		c.p.logEnd(c, err)
	}
	c.h.Closed(err)
}

// Detached implements loop.Stream.
func (s *stream) Detached(err error) {
	c := (*conn)(s)
	inside := c.qp.rx.inside()
	switch {
	case errors.Is(err, io.EOF) && inside:
		err = fmt.Errorf("iwarp: peer closed inside an FPDU: %w", io.ErrUnexpectedEOF)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("iwarp: peer closed: %w", io.EOF)
	case err != nil:
		err = fmt.Errorf("iwarp: connection: %w", err)
	default:
		err = fabric.ErrClosed
	}
	c.gone = true
	c.qp.abort(err)
	if c.timer != nil {
		c.timer.Stop()
	}
	for c.deliver() {
	}
	c.h = nil
	c.release()
}

// Close implements fabric.Conn.
func (c *conn) Close(err error) {
	if c.closed || c.gone {
		return
	}
	if !c.asked {
		c.asked, c.reason = true, err
	}
	c.qp.close(err)
	if err != nil && c.qp.state == stateClosing && c.sock != nil {
		c.sock.Abort() // a second Close, with an error, cuts the orderly close short
	}
	c.later()
}
