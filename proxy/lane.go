package proxy

import (
	"context"
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
// longer call. So the Calls of a client cannot take any connection. But one connection can carry
// many clients, because each Call names its session: RFC 8881 Section 2.10.3.1. A lane is one
// pooled connection for such clients. A client connection is assigned to a lane at its first
// NFSv4.1 Call and stays there until it ends. It goes to a lane that does not wait for the server to
// answer, of these to the one with the fewest clients of its host, and of several such lanes to the one
// with the fewest clients.
//
// A lane is a pool with one seat, so that dialling, credits and the fair queue are the same as in
// every pool: hosts divide the credits of a lane as they divide those of the shared connections.
// Each connection that the seat makes is a laneConn. A client is bound to the first laneConn that
// carries a Call of it, and no other carries its Calls. When that connection ends, the client's
// connection is closed, at once if one of its Calls can no longer be answered. When another
// connection replaces it, the client's connection is closed as soon as no Call is under way. So
// client and server see what they would see without a bridge: the client connects again, and
// binds its session to the next connection. parting.go spreads this over some time.
//
// Reverse Calls find their client by the session in their CB_SEQUENCE: lane_callback.go and
// session_table.go.

// errMoved reports a Call of a client that is bound to a connection which another one has
// replaced. errLaneEnded reports the end of that connection.
var (
	errMoved     = errors.New("proxy: another connection has replaced the one that carries the client's sessions")
	errLaneEnded = errors.New("proxy: the connection that carries the client's sessions has ended")
)

const (
	// laneReverse is how many credits the reverse direction of a lane's RDMA connection has. Linux
	// uses 2 of them.
	laneReverse = 16
	// laneReceives is how many Receives are posted on an idle lane over RDMA.
	laneReceives = 16
	// signedLanes is how many lanes there are for hosts that have several connections with Calls under
	// RPCSEC_GSS, if UpstreamOptions.Connections is less. For others the bridge changes a
	// BIND_CONN_TO_SESSION that the server would refuse (nfs.BindForeOrBoth), and signed ones it cannot
	// change. 16 is the most that nconnect allows a Linux client.
	signedLanes = 16
	// answersSoon is how long a server usually takes at most to answer on a new connection. Until then
	// clients are assigned to the lane as to any other. If they all went to the lanes that have answered
	// earlier by some milliseconds, these would have most clients for as long as the clients are there.
	answersSoon = 500 * time.Millisecond
)

// A lane is a place for one connection that many clients share.
type lane struct {
	u        *upstream  // constant, as the next three
	number   int        // among the upstream's lanes
	endpoint int        // of the endpoint that it prefers, or the only one that it may use
	pool     *pool.Pool // of one seat

	// Guarded by lanes.mu.
	conn    *laneConn                // the latest connection
	seat    *pool.Seat               // that dialled last
	clients map[*laneClient]struct{} // assigned to the lane
	hosts   map[*host]int            // how many of them each host has
	started bool
	failing bool  // a connection has failed or could not be made, and the server has answered on none since
	leaving bool  // a reload has taken the lane away
	lateAt  int64 // when another connection replaced one because of late Calls; 0 for never
}

// newLane makes lane number i for the settings o.
func (u *upstream) newLane(o *UpstreamOptions, i, endpoint int) (*lane, error) {
	l := &lane{u: u, number: i, endpoint: endpoint, clients: make(map[*laneClient]struct{}), hosts: make(map[*host]int)}
	p, err := pool.New(l.poolOptions(o), l, u)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	l.pool = p
	p.Need(0)
	return l, nil
}

func (l *lane) poolOptions(o *UpstreamOptions) pool.Options {
	u := l.u
	po := u.poolOptions(o, 0)
	po.Connections, po.First = 1, l.number%len(u.p.loops)
	po.Improve, po.Witness, po.Connected = nil, nil, nil
	if o.partitioned() {
		n := l.endpoint % len(o.Endpoints)
		po.Endpoints, po.Health = o.Endpoints[n:n+1], u.endpoints.apart[n]
	} else {
		po.KeepEndpoint = true
		if !o.Priority {
			po.Prefer = l.endpoint
		}
	}
	return po
}

// close ends the lane's pool, and waits for its loop.
func (l *lane) close() {
	l.pool.Close()
	ls := &l.u.lanes
	ls.mu.Lock()
	s := l.seat
	ls.mu.Unlock()
	if s != nil {
		l.u.discarded(s)
	}
}

// part has the clients of the lane closed for which which returns true. lanes.mu is held.
func (l *lane) part(how partHow, which func(*laneClient) bool) {
	var fronts []*front
	for r := range l.clients {
		if which(r) {
			fronts = append(fronts, r.front)
		}
	}
	l.u.parting.add(fronts, how)
}

// leave ends the assignment of r.
func (l *lane) leave(r *laneClient) {
	ls := &l.u.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(l.clients, r)
	if h := r.front.ledger.host; l.hosts[h] > 1 {
		l.hosts[h]--
	} else {
		delete(l.hosts, h)
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

// Dial makes the lane's next connection. pool.Dialer.
func (l *lane) Dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat) (pool.Member, error) {
	ls := &l.u.lanes
	ls.mu.Lock()
	l.seat = s
	if before := l.conn; before != nil && before.serves() {
		before.replaced = true
		before.part(partIdle)
		before.unused()
	}
	ls.mu.Unlock()
	c := &laneConn{lane: l, loop: l.u.p.loops[affinity]}
	m, err := l.u.dial(ctx, endpoint, affinity, s, c)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err != nil || c.over {
		l.failing = true
		l.partWaiting()
		return m, err
	}
	l.conn, c.member, c.since = c, m.(lateMember), l.u.p.engine.Now()
	if c.hasAnswered {
		c.works()
	} else {
		c.mute = time.AfterFunc(l.u.settings().ConnectTimeout, c.isMute)
	}
	return m, nil
}

// partWaiting has the clients closed that wait for a connection of the lane, if they can have another
// lane. lanes.mu is held.
func (l *lane) partWaiting() {
	if slices.ContainsFunc(l.u.lanes.all, l.mayReplace) {
		l.part(partNow, func(r *laneClient) bool { return r.bound.Load() == nil })
	}
}

// mayReplace reports whether the clients of l could be on o, on whose connection the server answers.
// lanes.mu is held.
func (l *lane) mayReplace(o *lane) bool {
	return o.works() && (o.endpoint == l.endpoint || !l.u.settings().partitioned())
}

// works reports whether the lane has a connection on which the server answers. lanes.mu is held.
func (l *lane) works() bool { return l.conn != nil && l.conn.serves() && l.conn.hasAnswered }

// waits reports whether the lane is failing, or has a connection on which the server has not answered soon.
// A lane that needed no connection so far does not wait. lanes.mu is held.
func (l *lane) waits() bool {
	c := l.conn
	return l.failing || c != nil && c.serves() && !c.hasAnswered && l.u.p.engine.Now()-c.since > int64(answersSoon)
}
