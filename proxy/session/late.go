package session

import (
	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Late Calls
//
// A Call is late if the server has not answered it within Settings.CallTimeout although it has
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

// Keeps reports whether the connection goes on although the server has not answered a Call in time and has answered
// later Calls. signed is whether the Call is under RPCSEC_GSS. n is how many such Calls the connection has, this one
// included, and grant how many Calls it may have in all. The connection of a pinned lane does not.
func (c *Conn) Keeps(signed bool, n, grant int) bool {
	l := c.lane
	ls := l.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch now := l.lanes.o.Now(); {
	case !c.serves() || len(l.clients) == 0:
		return false
	case lateShare*n < grant && !signed:
		return true
	case l.lateAt == 0 || lateShare*(grant-n) <= grant || now-l.lateAt >= latePause*int64(ls.settings.CallTimeout):
		l.lateAt = now
		return false
	}
	return true
}

// unused arranges for the connection to end if nobody has any use for it but late Calls. It is called when
// that may be so: a client has left, or another connection carries the lane's next Calls. Lanes.mu is held.
func (c *Conn) unused() {
	if !c.over && (c.replaced || len(c.lane.clients) == 0) {
		c.loop.Post(loop.TaskFunc(c.endIfLate))
	}
}

// endIfLate ends the connection if it has late Calls, and no client: of those of the lane, or, if another
// connection has replaced it, of those that it carries. Nobody waits for the Replies to the late Calls. Their memory
// would be in use for as long as the connection lasts, which lasts as long as they do. It runs on the connection's loop.
func (c *Conn) endIfLate() {
	ls := c.lane.lanes
	ls.mu.Lock()
	m := c.member
	end := !c.over && m != nil && m.LateCalls() > 0 && !c.hasClients()
	ls.mu.Unlock()
	if end {
		m.Drop()
	}
}

// hasClients reports whether clients wait for Replies on the connection, or may. Lanes.mu is held.
func (c *Conn) hasClients() bool {
	for r := range c.lane.clients {
		if !c.replaced || r.bound.Load() == c {
			return true
		}
	}
	return false
}
