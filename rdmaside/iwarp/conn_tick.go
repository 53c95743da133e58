package iwarp

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// connTick is the timer's task.
type connTick conn

func (t *connTick) Run() { (*conn)(t).tick() }

// period is the time between two ticks.
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

// silentLook is the longest period of a connection with a SilentTimeout.
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
		// Reset what an orderly close, or a Terminate, has left open.
		if c.qp.state == stateClosing && !c.qp.fin {
			c.qp.end(stateError, errCloseTimeout)
			c.reason = errCloseTimeout
		}
		c.sock.Abort()
		c.finSent = true
	case c.silent():
		c.qp.abort(errSilent)
		c.sock.Abort()
		c.finSent = true
	case c.stalled(now):
		c.qp.abort(errStalled)
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

// silent reports whether the peer's host has acknowledged nothing for so long that it
// is considered gone.
func (c *conn) silent() bool {
	most := c.p.opts.SilentTimeout
	if most <= 0 {
		return false
	}
	s, ok := c.sock.(loop.WatchedSocket)
	if !ok {
		return false
	}
	// Keepalive probes start after a quarter of most, and ticks may come late, so
	// five eighths of most without an acknowledgement suffice.
	return s.Silent() >= most/8*5 && c.qp.alive()
}

// stalled reports whether the peer has made no progress for ProgressTimeout with an
// FPDU that it has begun to send, or with one that this side has begun to write.
func (c *conn) stalled(now time.Time) bool {
	most := c.p.opts.ProgressTimeout
	if most <= 0 || !c.qp.alive() {
		return false
	}
	return c.qp.rx.inside() && now.Sub(c.last) >= most || c.blocked && now.Sub(c.stuck) >= most
}
