package iwarp

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// connTick is the timer's task.
type connTick conn

func (t *connTick) Run() { (*conn)(t).tick() }

// period is how often a connection is looked at.
func (c *conn) period() time.Duration {
	most := 5 * time.Second
	if c.p.opts.SilentTimeout > 0 {
		most = silentLook
	}
	d := c.p.opts.ProgressTimeout / 4
	if d <= 0 {
		d = time.Hour
		if c.p.opts.SilentTimeout <= 0 {
			return d
		}
	}
	return min(max(d, 10*time.Millisecond), most)
}

// silentLook is how often a connection with a SilentTimeout is looked at.
const silentLook = 500 * time.Millisecond

func (c *conn) tick() {
	if c.gone {
		return
	}
	now := time.Now()
	next := c.period()
	switch {
	case !c.deadline.IsZero():
		if left := c.deadline.Sub(now); left > 0 {
			next = left
			break
		}
		// Whatever is still open is not worth more waiting.
		if c.qp.state == stateClosing && !c.qp.fin {
			c.qp.end(stateError, ErrCloseTimeout)
			c.reason = ErrCloseTimeout
		}
		c.sock.Abort()
		c.finSent = true
	case c.silent():
		c.qp.abort(errSilent)
		c.sock.Abort()
		c.finSent = true
	case c.stalled(now):
		c.qp.abort(ErrStalled)
		c.sock.Abort()
		c.finSent = true
	case c.kicks > 0:
		if c.qp.rx.heard {
			c.kicks = 0
			break
		}
		c.qp.tx.kick = true
		if c.kicks--; c.kicks > 0 {
			next = secondKick
		}
	}
	c.timer.Reset(next)
	c.step()
}

// silent reports whether the peer's host seems to be gone.
func (c *conn) silent() bool {
	most := c.p.opts.SilentTimeout
	if most <= 0 {
		return false
	}
	s, ok := c.sock.(loop.WatchedSocket)
	if !ok {
		return false
	}
	// Keepalive has asked after a quarter, and looks come late.
	return s.Silent() >= most/8*5 && c.qp.alive()
}

// stalled reports whether the peer keeps an FPDU waiting, in either direction.
func (c *conn) stalled(now time.Time) bool {
	most := c.p.opts.ProgressTimeout
	if most <= 0 || !c.qp.alive() {
		return false
	}
	return c.qp.rx.inside() && now.Sub(c.last) >= most || c.blocked && now.Sub(c.stuck) >= most
}
