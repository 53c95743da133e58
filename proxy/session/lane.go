package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/pool"
)

// Lanes
//
// An NFSv4.1 server knows its connections: it binds a session to those that the session was used
// on, calls the client back on one of them, and sees in the end of a connection that it can no
// longer call. When the client protects its state (SP4_MACH_CRED), the server refuses the session on any
// other connection until the client sends BIND_CONN_TO_SESSION there. So the Calls of a client cannot take
// any connection. But one connection can carry many clients, because each Call names its session:
// RFC 8881 Section 2.10.3.1. A lane is one pooled connection for such clients, or for one client: pinned.go.
//
// A client connection is assigned to a lane at its first NFSv4.1 Call and stays there until it ends. It
// goes to a lane that does not wait for the server to answer, of these to the one with the fewest clients
// of its host, and of several such lanes to the one with the fewest clients.
//
// A lane is a pool with one seat, so that dialling, credits and the fair queue are the same as in
// every pool: hosts divide the credits of a lane as they divide those of the shared connections.
// Each connection that the seat makes is a [Conn]. A client is bound to the first Conn that
// carries a Call of it, and no other carries its Calls. When that connection ends, the client's
// connection is closed, at once if one of its Calls can no longer be answered. When another
// connection replaces it, the client's connection is closed as soon as no Call is under way. So
// client and server see what they would see without a bridge: the client connects again, and
// binds its session to the next connection. disconnects.go spreads this over some time.
//
// Reverse Calls find their client by the session in their CB_SEQUENCE: reverse.go and [Table].

// ErrMoved reports a Call of a client that is bound to a connection which another one has
// replaced.
var ErrMoved = errors.New("proxy: another connection has replaced the one that carries the client's sessions")

const (
	// sharedCalls bounds the reverse Calls that are outstanding on one connection of a lane that clients share.
	sharedCalls = 1024
	// sharedReverse is how many credits the reverse direction of a lane's RDMA connection has. Linux
	// uses 2 of them.
	sharedReverse = 16
	// sharedReceives is how many Receives are posted on an idle lane over RDMA.
	sharedReceives = 16
	// signedLanes is how many lanes there are for hosts that have several connections with Calls under
	// RPCSEC_GSS, if Settings.Lanes is less. For others the bridge changes a
	// BIND_CONN_TO_SESSION that the server would refuse (nfs.BindForeOrBoth), and signed ones it cannot
	// change. 16 is the most that nconnect allows a Linux client.
	signedLanes = 16
	// answersSoon is how long a server usually takes at most to answer on a new connection. Until then
	// clients are assigned to the lane as to any other. If they all went to the lanes that have answered
	// earlier by some milliseconds, these would have most clients for as long as the clients are there.
	answersSoon = 500 * time.Millisecond
)

// newLane makes a lane without clients. mu is held.
func (ls *Lanes) newLane(o laneOptions) (*Lane, error) {
	l := &Lane{lanes: ls, opts: o}
	p, err := pool.New(l.poolOptions(ls.settings), l, ls.o.Owner)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	l.pool = p
	p.Need(0)
	return l, nil
}

// poolOptions are the options of the pool with the settings s.
func (l *Lane) poolOptions(s *Settings) pool.Options {
	po := s.Pool
	po.Connections, po.First, po.Loops, po.Quota = 1, l.opts.loop, l.opts.loops, l.opts.quota
	po.Improve, po.Witness, po.Connected = nil, nil, nil
	if l.opts.only != nil {
		po.Idle, po.SlowStart, po.Share, po.Scarce = 0, nil, 0, nil
	}
	if s.apart() {
		po.Endpoints = s.Endpoints // the options of the shared connections have one
		s.One(&po, l.opts.endpoint%len(s.Endpoints))
	} else {
		po.KeepEndpoint = true
		if !s.Priority {
			po.Prefer = l.opts.endpoint
		}
	}
	return po
}

// close ends the lane's pool, and waits for its loop.
func (l *Lane) close() {
	l.pool.Close()
	ls := l.lanes
	ls.mu.Lock()
	s, discarded := l.seat, ls.settings.Pool.Discarded
	ls.mu.Unlock()
	if s != nil && discarded != nil {
		discarded(s)
	}
}

// disconnect has the clients of the lane closed for which which returns true. Lanes.mu is held.
func (l *Lane) disconnect(w when, which func(*Client) bool) {
	var peers []Ender
	for r := range l.clients {
		if which(r) {
			peers = append(peers, r.o.Peer)
		}
	}
	l.lanes.disconnects.add(peers, w)
}

// leave ends the assignment of r, which shares l with others. Lanes.mu is held.
func (l *Lane) leave(r *Client) {
	ls := l.lanes
	delete(l.clients, r)
	if l.hosts[r.host]--; l.hosts[r.host] == 0 {
		delete(l.hosts, r.host)
	}
	bound := r.bound.Load()
	if bound != nil {
		bound.unused()
	}
	if len(l.clients) > 0 {
		return
	}
	if c := l.conn; c != nil && c != bound {
		c.unused()
	}
	if !l.failing { // or no client would come before the pool has a connection
		l.pool.Need(0)
	}
	if i := slices.Index(ls.old, l); i >= 0 && !ls.closed {
		ls.old = slices.Delete(ls.old, i, i+1)
		ls.ending.Go(l.close)
	}
}

// disconnectWaiting has the clients closed that wait for a connection of the lane, if they can have another
// lane. Lanes.mu is held.
func (l *Lane) disconnectWaiting() {
	if slices.ContainsFunc(l.lanes.all, l.mayReplace) {
		l.disconnect(atOnce, func(r *Client) bool { return r.bound.Load() == nil })
	}
}

// mayReplace reports whether the clients of l could be on o, on whose connection the server answers.
// Lanes.mu is held.
func (l *Lane) mayReplace(o *Lane) bool {
	return o.works() && (o.opts.endpoint == l.opts.endpoint || !l.lanes.settings.apart())
}

// works reports whether the lane has a connection on which the server answers. Lanes.mu is held.
func (l *Lane) works() bool { return l.conn != nil && l.conn.serves() && l.conn.hasAnswered }

// waits reports whether the lane is failing, or has a connection on which the server has not answered soon.
// A lane that needed no connection so far does not wait. Lanes.mu is held.
func (l *Lane) waits() bool {
	c := l.conn
	return l.failing || c != nil && c.serves() && !c.hasAnswered && l.lanes.o.Now()-c.since > int64(answersSoon)
}

// needShared has the upstream keep one shared connection while no lane has one that works: the next Call may
// need it, and it shows that the server is there. mu is held.
func (ls *Lanes) needShared() {
	if ls.closed {
		return
	}
	pools := ls.o.Shared()
	for i, p := range pools {
		n := 1
		for _, l := range ls.all {
			if l.works() && (len(pools) == 1 || l.opts.endpoint == i) {
				n = 0
				break
			}
		}
		p.Need(n)
	}
}

// serves reports whether the connection carries Calls. Lanes.mu is held.
func (c *Conn) serves() bool { return !c.replaced && !c.over }

// disconnect has the clients of the connection closed. Lanes.mu is held.
func (c *Conn) disconnect(w when) {
	c.lane.disconnect(w, func(r *Client) bool { return r.bound.Load() == c })
}
