package proxy

import (
	"slices"
	"sync"

	"github.com/rdmabridge/rdmabridge/pool"
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
			l.part(partIdle, func(*laneClient) bool { return true })
		case l.started:
			ls.ending.Go(l.close)
		}
	}
	return nil
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
			only = endpointFor(f.ledger.addr(), len(o.Endpoints))
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

// betterThan reports whether l is better than o for f: it does not wait for the server to answer, it has
// fewer clients of the same host, fewer clients, the client's own loop. A client that has several
// connections, such as Linux with nconnect, has them on different lanes, as far as there are enough: for
// the server they are different connections then, too. lanes.mu is held.
func (l *lane) betterThan(o *lane, f *front) bool {
	if a, b := l.waits(), o.waits(); a != b {
		return b
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

// needShared has the upstream keep one shared connection while no lane has one that works: the next Call may
// need it, and it shows that the server is there. lanes.mu is held.
func (u *upstream) needShared() {
	if u.lanes.closed {
		return
	}
	for i, p := range u.pools {
		n := 1
		for _, l := range u.lanes.all {
			if l.works() && (len(u.pools) == 1 || l.endpoint == i) {
				n = 0
				break
			}
		}
		p.Need(n)
	}
}
