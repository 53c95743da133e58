package iwarp

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// closing does what the qp's state asks of the socket.
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
		// The peer's Terminate, or the end of the socket. Close sends FIN behind what
		// was written; if that is stuck, RST.
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

// sendFIN ends our direction; the peer's FIN, or the deadline in d, ends the rest.
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

// expire sets the deadline of closing; without one the peer decides.
func (c *conn) expire(d time.Duration) {
	if d <= 0 {
		return
	}
	c.deadline = time.Now().Add(d)
	c.timer.Reset(d)
}

// deliver hands completions to the ULP, and Closed when nothing of the ULP's is
// touched any more. It reports whether it did anything.
func (c *conn) deliver() bool {
	if c.closed {
		c.qp.take()
		return false
	}
	cs := c.qp.take()
	if len(cs) > 0 {
		for i := range cs {
			if cs[i].Op == fabric.OpReceive {
				c.unanswered--
			}
		}
		c.h.Completed(cs)
		clear(cs)
		return true
	}
	// An orderly end waits for the peer's FIN: then what was posted has arrived.
	if c.qp.ended && (c.gone || c.qp.state != stateClosing) {
		c.end()
		return true
	}
	return false
}

// end tells the ULP that the connection is over.
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
		c.sock.Abort() // the second Close is out of patience
	}
	c.later()
}
