package proxy

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A laneClient is a client connection that is assigned to a lane.
type laneClient struct {
	front *front // constant, as the next two
	lane  *lane
	since int64 // when the client was assigned, on the clock of the loops

	bound    atomic.Pointer[laneConn] // the connection that carries the Calls; set once
	sessions *session                 // that the client is called on; guarded by sessionTable.mu
	seen     nfs.SessionID            // a session of which the table need not learn anything; the client's loop's
	settled  flag                     // the table has nothing to learn from Calls that it cannot read
	reverse  reverseQueue
}

// A laneConn is one connection of a lane.
type laneConn struct {
	lane  *lane      // constant, as the next
	loop  *eventLoop // on which the connection lives
	calls laneCalls  // the loop's

	member      lateMember  // what sends the Calls; nil before Dial has returned; guarded by lanes.mu, as the rest
	since       int64       // when Dial returned, on the clock of the loops
	hasAnswered bool        // the server has granted a credit
	mute        *time.Timer // calls isMute; nil before Dial has returned, and if the server answered earlier
	replaced    bool        // another connection carries the lane's next Calls
	over        bool        // the connection has ended
}

// serves reports whether the connection carries Calls. lanes.mu is held.
func (c *laneConn) serves() bool { return !c.replaced && !c.over }

// carries is part of connOwner. It binds a client that is not bound to any connection.
func (c *laneConn) carries(v *call) bool {
	if c.calls.over {
		return true // send finds that it has ended, and the client may be bound to the next one
	}
	b := &v.queue.lane.bound // the client's queue is in the lane's pool
	if b.Load() != c && !b.CompareAndSwap(nil, c) {
		return false
	}
	if v.rdma.Analysis.SessionOps != 0 && nfs.BindForeOrBoth(&v.h, &v.rdma.Analysis, c.callsBack) {
		v.foreAlone = true
	}
	return true
}

// callsBack reports whether the server calls session id back on the connection.
func (c *laneConn) callsBack(id nfs.SessionID) bool { return c.lane.u.table.calledOn(id, c) }

// answered is part of connOwner.
func (c *laneConn) answered() {
	ls := &c.lane.u.lanes
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

// works notes that the server answers on c, the lane's connection. lanes.mu is held.
func (c *laneConn) works() {
	l := c.lane
	l.failing = false
	l.u.needShared()
	if len(l.clients) == 0 {
		l.pool.Need(0) // it was needed while the lane was failing
	}
}

// isMute has the clients that wait for the server to answer on c closed if they can have another lane. It
// runs when the server has not answered for as long as an attempt to connect may take, and again after as
// long, because another lane may work then.
func (c *laneConn) isMute() {
	ls := &c.lane.u.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if c.serves() && !c.hasAnswered {
		c.lane.partWaiting()
		c.lane.u.needShared()
		c.mute.Reset(c.lane.u.settings().ConnectTimeout)
	}
}

// ended is part of connOwner. The Calls that the connection carried have no other: call.failed.
func (c *laneConn) ended(err error) {
	l := c.lane
	ls := &l.u.lanes
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
			l.partWaiting()
		}
	}
	c.part(partNow)
	l.u.needShared()
	ls.mu.Unlock()
	c.calls.end()
}

// part has the clients of the connection closed. lanes.mu is held.
func (c *laneConn) part(how partHow) {
	c.lane.part(how, func(r *laneClient) bool { return r.bound.Load() == c })
}

// ports is part of connOwner.
func (c *laneConn) ports() uint64 { return uint64(c.lane.number) }

// names is part of connOwner: the connection has many clients.
func (c *laneConn) names(b []byte) []byte { return proxyheader.AppendLocal(b) }

// receives is part of connOwner.
func (c *laneConn) receives() (idle, reverse int) { return laneReceives, laneReverse }

// mostCallBacks is part of connOwner.
func (c *laneConn) mostCallBacks() int { return maxLaneCalls }
