package proxy

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// Late Calls
//
// A Call is late if the server has not answered it within UpstreamOptions.CallTimeout although it has
// answered later Calls. An NFSv4.1 server must not drop a Call without closing the connection (RFC 8881
// Section 2.9.2), so the Call probably takes long, or hangs. On a shared connection, the Call's credit
// is worth another connection: that costs the other Calls nothing. But another connection for a lane
// has each client of the lane connect again, and one host whose Calls hang must not cause that once
// in CallTimeout. So the lane's connection goes on, and the bridge closes the connection of the client
// whose Call is late. The client sends the Call again, and the server does not execute it twice,
// because it is a COMPOUND of a session. When the server answers the late Call after all, its credit
// comes back.
//
// Another connection replaces the lane's when a lateShare of its credits is in use by late Calls, but
// not more often than once in latePause times CallTimeout, unless late Calls have all the credits but a
// lateShare. Only many hosts whose Calls hang get as far as that: package pool. New hosts could not get in
// then. A late Call that is signed counts like a lateShare, because its XID cannot be changed: on the
// same connection the client could not send it again.

const (
	lateShare = 8
	latePause = 10
)

// errLate closes the client of a late Call.
var errLate = errors.New("proxy: the server has answered later calls and not this one")

// keeps is part of connOwner.
func (c *laneConn) keeps(late *call, n, grant int) bool {
	l := c.lane
	ls := &l.u.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch now := l.u.p.engine.Now(); {
	case !c.serves() || len(l.clients) == 0:
		return false
	case lateShare*n < grant && !late.signed:
		return true
	case l.lateAt == 0 || lateShare*(grant-n) <= grant || now-l.lateAt >= latePause*int64(l.u.settings().CallTimeout):
		l.lateAt = now
		return false
	}
	return true
}

// overdue closes the client of c, which is late and stays outstanding. It runs on the loop of c's
// connection, whose number is here.
func (c *call) overdue(here int) {
	if c.flying {
		c.land(here) // the client's next transmission does not wait for this one
	}
	if x := c.order(); x != nil {
		x.leave(c, here)
	}
	c.result = resultAbandoned
	f, xid := c.owner.front, c.clientXID
	f.loop.Post(loop.TaskFunc(func() { f.late(xid) }))
}

// A lateMember is a connection that knows how many late Calls it has. Its methods run on its loop.
type lateMember interface {
	upstreamConn
	lateCalls() int
}

// unused arranges for the connection to end if nobody has any use for it but late Calls. It is called when
// that may be so: a client has left, or another connection carries the lane's next Calls. lanes.mu is held.
func (c *laneConn) unused() {
	if !c.over && (c.replaced || len(c.lane.clients) == 0) {
		c.loop.Post(loop.TaskFunc(c.endIfLate))
	}
}

// endIfLate ends the connection if it has late Calls, and no client: of those of the lane, or, if another
// connection has replaced it, of those that it carries. Nobody waits for the Replies to the late Calls. Their memory would
// be in use for as long as the connection lasts, which lasts as long as they do. It runs on the connection's loop.
func (c *laneConn) endIfLate() {
	ls := &c.lane.u.lanes
	ls.mu.Lock()
	m := c.member
	end := !c.over && m != nil && m.lateCalls() > 0 && !c.hasClients()
	ls.mu.Unlock()
	if end {
		m.Close(rdmaside.ErrDropped)
	}
}

// hasClients reports whether clients wait for Replies on the connection, or may. lanes.mu is held.
func (c *laneConn) hasClients() bool {
	for r := range c.lane.clients {
		if !c.replaced || r.bound.Load() == c {
			return true
		}
	}
	return false
}
