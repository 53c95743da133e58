package session

import (
	"context"
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Dial makes the lane's next connection. pool.Dialer.
func (l *Lane) Dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat) (pool.Member, error) {
	ls := l.lanes
	ls.mu.Lock()
	l.seat = s
	if before := l.conn; before != nil && before.serves() {
		before.replaced = true
		before.disconnect(whenIdle)
		before.unused()
	}
	ls.mu.Unlock()
	c := &Conn{lane: l, loop: ls.o.Loops[affinity], affinity: affinity}
	m, err := ls.o.Dial(ctx, endpoint, affinity, s, c)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err != nil || c.over {
		l.failing = true
		l.disconnectWaiting()
		return m, err
	}
	l.conn, c.member, c.since = c, m.(Member), l.lanes.o.Now()
	if c.hasAnswered {
		c.works()
	} else {
		c.mute = time.AfterFunc(ls.settings.ConnectTimeout, c.isMute)
	}
	return m, nil
}

// Carries reports whether the connection may carry the Call k of r, which it is about to send, and whose header and
// Analysis are h and a. It binds a client that is not bound to any connection.
func (c *Conn) Carries(r *Client, k *Call, h *oncrpc.Call, a *ulb.Analysis) bool {
	if c.lane.opts.only != nil {
		return true
	}
	if c.calls.over {
		return true // send finds that it has ended, and the client may be bound to the next one
	}
	if r.bound.Load() != c && !r.bound.CompareAndSwap(nil, c) {
		return false
	}
	if a.SessionOps != 0 && nfs.BindForeOrBoth(h, a, c.callsBack) {
		k.ForeAlone = true
	}
	return true
}

// callsBack reports whether the server calls session id back on the connection.
func (c *Conn) callsBack(id nfs.SessionID) bool { return c.lane.lanes.Table.calledOn(id, c) }

// Answered is called when the server has answered for the first time.
func (c *Conn) Answered() {
	ls := c.lane.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	c.hasAnswered = true
	if c.mute != nil {
		c.mute.Stop()
	}
	if c.lane.conn == c { // or Dial calls works
		c.works()
	}
}

// works notes that the server answers on c, the lane's connection. Lanes.mu is held.
func (c *Conn) works() {
	l := c.lane
	l.failing = false
	l.lanes.needShared()
	if len(l.clients) == 0 {
		l.pool.Need(0) // it was needed while the lane was failing
	}
}

// isMute has the clients that wait for the server to answer on c closed if they can have another lane. It
// runs when the server has not answered for as long as an attempt to connect may take, and again after as
// long, because another lane may work then.
func (c *Conn) isMute() {
	ls := c.lane.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if c.serves() && !c.hasAnswered {
		c.lane.disconnectWaiting()
		ls.needShared()
		c.mute.Reset(ls.settings.ConnectTimeout)
	}
}

// Ended is called when the connection has ended with err. The Calls of clients that share the lane have no other
// connection.
func (c *Conn) Ended(err error) {
	l := c.lane
	ls := l.lanes
	ls.mu.Lock()
	c.over = true
	if c.mute != nil {
		c.mute.Stop()
	}
	if l.conn == c {
		// The pool makes another connection only if clients need it, or have needed it since the lane
		// began to fail.
		l.failing = (l.failing || len(l.clients) > 0) && !errors.Is(err, pool.ErrClosed)
		if l.failing && !c.hasAnswered {
			l.disconnectWaiting()
		}
	}
	c.disconnect(atOnce)
	l.lanes.needShared()
	ls.mu.Unlock()
	c.calls.end()
}

// Receives is how many Receives are posted on the connection while it is idle, and how many of its reverse Calls may be
// outstanding. It is for connections over RDMA. Any goroutine.
func (c *Conn) Receives() (idle, reverse int) { return c.lane.opts.receives, c.lane.opts.reverse }

// MostCallBacks is how many reverse Calls may be outstanding on a connection over TCP. Any goroutine.
func (c *Conn) MostCallBacks() int { return c.lane.opts.calls }

// Ports is the number from which the first source port follows. Any goroutine.
func (c *Conn) Ports() uint64 { return c.lane.opts.ports }

// Preamble is the PROXY header of the connection, which names the client if the lane is pinned. Any goroutine.
func (c *Conn) Preamble() []byte { return c.lane.opts.preamble }
