package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Lanes
//
// An NFSv4.1 server knows its connections: it binds a session to those that the session was used
// on, calls the client back on one of them, and sees in the end of a connection that it can no
// longer call. So the Calls of a client cannot take any connection. But one connection can carry
// many clients, because each Call names its session: RFC 8881 Section 2.10.3.1. A lane is one
// pooled connection for such clients. A client connection is assigned to a lane at its first
// NFSv4.1 Call and stays there until it ends. It goes to the lane with the fewest clients of its host,
// and of several such lanes to the one with the fewest clients.
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
)

// lanes are the lanes of an upstream.
type lanes struct {
	mu     sync.Mutex // guards the rest, and the fields of lanes and laneConns that say so
	all    []*lane    // those that clients may be assigned to, by their numbers
	extra  int        // how many of them are there for signedLanes
	old    []*lane    // those that a reload has taken away, and that may still have clients
	closed bool
	ending sync.WaitGroup // counts the goroutines that close lanes; none begins when closed is set
}

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
	failing bool  // the latest connection has failed or could not be made, and the pool makes another
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

// laneCount is how many lanes an upstream with the settings o has. Where each client belongs to one
// endpoint, each endpoint has as many.
func (o *UpstreamOptions) laneCount() int {
	switch {
	case o.Mode != ModeAuto && o.Mode != ModeSessions:
		return 0
	case !o.partitioned():
		return o.Connections
	}
	n := len(o.Endpoints)
	return (o.Connections + n - 1) / n * n
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

// setLanes makes as many lanes as the settings o ask for. Clients on lanes that are too many are
// closed when they are idle.
func (u *upstream) setLanes(o *UpstreamOptions) error {
	ls := &u.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed {
		return nil
	}
	n := o.laneCount()
	if n > 0 {
		n = max(n, min(n+ls.extra, signedLanes))
	}
	ls.extra = max(0, n-o.laneCount())
	for len(ls.all) < n {
		i := len(ls.all)
		l, err := u.newLane(o, i, i%len(o.Endpoints))
		if err != nil {
			return err
		}
		ls.all = append(ls.all, l)
	}
	for len(ls.all) > n {
		last := len(ls.all) - 1
		l := ls.all[last]
		ls.all = ls.all[:last]
		l.leaving = true
		switch {
		case len(l.clients) > 0:
			ls.old = append(ls.old, l)
			l.depart()
		case l.started:
			ls.ending.Go(l.close)
		}
	}
	return nil
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

// depart has the clients of the lane closed when they are idle. lanes.mu is held.
func (l *lane) depart() {
	l.part(partIdle, func(*laneClient) bool { return true })
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

// mustSetLanes does what setLanes does, for settings that the pools of u have, too.
func (u *upstream) mustSetLanes(o *UpstreamOptions) {
	if err := u.setLanes(o); err != nil {
		panic("BUG: proxy: " + err.Error())
	}
}

// updateLanes puts the settings o in force. Connections that would be made differently now are
// replaced, and their clients are closed when they are idle.
func (u *upstream) updateLanes(o *UpstreamOptions, renew bool) {
	u.mustSetLanes(o)
	ls := &u.lanes
	ls.mu.Lock()
	all := slices.Clone(ls.all)
	ls.mu.Unlock()
	for _, l := range all {
		l.pool.Update(l.poolOptions(o), renew)
	}
}

// lanePools returns the pools of the lanes that have been used.
func (u *upstream) lanePools() (ps []*pool.Pool) {
	ls := &u.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range slices.Concat(ls.all, ls.old) {
		if l.started {
			ps = append(ps, l.pool)
		}
	}
	return ps
}

// closeLanes ends every lane, and waits until all have ended.
func (u *upstream) closeLanes() {
	ls := &u.lanes
	ls.mu.Lock()
	ls.closed = true
	ls.mu.Unlock()
	for _, p := range u.lanePools() {
		p.Close()
	}
	ls.ending.Wait()
	u.parting.close()
}

// assign assigns r to a lane. It is the lane of conn if that is not nil and has not
// ended: the client has a session there. assign fails with errClosing after closeLanes.
//
// Otherwise a client under RPCSEC_GSS gets a lane on which its host has no other client: see
// signedLanes.
func (u *upstream) assign(r *laneClient, conn *laneConn, signed bool) error {
	ls := &u.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed || len(ls.all) == 0 {
		return errClosing
	}
	f, o := r.front, u.settings()
	var best *lane
	back := conn != nil && conn.serves() && !conn.lane.leaving
	if back {
		best = conn.lane
	} else {
		only := -1
		if o.partitioned() {
			only = endpointFor(f.ledger.addr, len(o.Endpoints))
		}
		for _, l := range ls.all {
			if (only < 0 || l.endpoint == only) && (best == nil || l.betterThan(best, f)) {
				best = l
			}
		}
	}
	if signed && !back && best.hosts[f.ledger.host] > 0 && len(ls.all) < signedLanes {
		l, err := u.newLane(o, len(ls.all), best.endpoint)
		if err != nil {
			return err
		}
		ls.all = append(ls.all, l)
		ls.extra++
		best = l
	}
	if !best.started {
		best.started = true
		best.pool.Start()
	}
	if best.clients[r] = struct{}{}; len(best.clients) == 1 {
		best.pool.Need(1)
	}
	best.hosts[f.ledger.host]++
	r.lane = best
	return nil
}

// betterThan reports whether l is better than o for f: no connection has failed there, fewer clients of
// the same host, fewer clients, the client's own loop. A client that has several connections, such as
// Linux with nconnect, has them on different lanes, as far as there are enough: for the server they
// are different connections then, too. lanes.mu is held.
func (l *lane) betterThan(o *lane, f *front) bool {
	if l.failing != o.failing {
		return o.failing
	}
	if a, b := l.hosts[f.ledger.host], o.hosts[f.ledger.host]; a != b {
		return a < b
	}
	here, loops := f.loop.index, len(l.u.p.loops)
	near, otherNear := l.number%loops == here, o.number%loops == here
	// A client on another loop costs each Call a wake-up. So the lanes of the client's loop may
	// have more clients than others, by a third.
	a, b := 2*len(l.clients), 2*len(o.clients)
	if near {
		a -= len(l.clients) / 2
	}
	if otherNear {
		b -= len(o.clients) / 2
	}
	if a != b {
		return a < b
	}
	return near && !otherNear
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
	if len(l.clients) > 0 {
		return
	}
	if c := l.conn; c != nil && c.serves() {
		c.loop.Post(loop.TaskFunc(c.endIfLate))
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
	}
	ls.mu.Unlock()
	c := &laneConn{lane: l, loop: l.u.p.loops[affinity]}
	m, err := l.u.dial(ctx, endpoint, affinity, s, c)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.failing = err != nil || c.over
	if err != nil {
		if slices.ContainsFunc(ls.all, l.mayReplace) { // the clients that wait here can have another lane
			l.part(partNow, func(r *laneClient) bool { return r.bound.Load() == nil })
		}
		return nil, err
	}
	if !c.over {
		l.conn, c.member = c, m.(lateMember)
		l.u.needShared()
		if len(l.clients) == 0 {
			l.pool.Need(0) // it was needed while the lane was failing
		}
	}
	return m, nil
}

// needShared has the upstream keep one shared connection while no lane has one: the next Call may
// need it, and it shows that the server is there. lanes.mu is held.
func (u *upstream) needShared() {
	if u.lanes.closed {
		return
	}
	for i, p := range u.pools {
		n := 1
		for _, l := range u.lanes.all {
			if l.conn != nil && l.conn.serves() && (len(u.pools) == 1 || l.endpoint == i) {
				n = 0
				break
			}
		}
		p.Need(n)
	}
}

// mayReplace reports whether the clients of l could be on o, which has a connection. lanes.mu is held.
func (l *lane) mayReplace(o *lane) bool {
	return o.conn != nil && o.conn.serves() && (o.endpoint == l.endpoint || !l.u.settings().partitioned())
}

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

	member   lateMember // what sends the Calls; nil before Dial has returned; guarded by lanes.mu, as the next two
	replaced bool       // another connection carries the lane's next Calls
	over     bool       // the connection has ended
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

// ended is part of connOwner. The Calls that the connection carried have no other: call.failed.
func (c *laneConn) ended(err error) {
	ls := &c.lane.u.lanes
	ls.mu.Lock()
	c.over = true
	if c.lane.conn == c {
		// The pool makes another connection only if clients need it.
		c.lane.failing = len(c.lane.clients) > 0 && !errors.Is(err, pool.ErrClosed)
	}
	c.part(partNow)
	c.lane.u.needShared()
	ls.mu.Unlock()
	c.calls.end()
}

// part has the clients of the connection closed. lanes.mu is held.
func (c *laneConn) part(how partHow) {
	c.lane.part(how, func(r *laneClient) bool { return r.bound.Load() == c })
}

// ports is part of connOwner.
func (c *laneConn) ports() uint64 { return uint64(c.lane.number) }

// receives is part of connOwner.
func (c *laneConn) receives() (idle, reverse int) { return laneReceives, laneReverse }

// mostCallBacks is part of connOwner.
func (c *laneConn) mostCallBacks() int { return maxLaneCalls }
