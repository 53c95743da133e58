package session

import (
	"errors"
	"iter"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Pinned lanes
//
// With pool.mode pinned each client connection has a lane of its own, whose connection carries the Calls of nobody
// else. The server's messages on the one are for the client on the other, and the proxy passes them on without
// looking inside: callback.go. Either connection may be TCP or RDMA. A PROXY header can tell the server whose
// connection it is.
//
// The pool of a pinned lane is on the client's loop. The first Call that needs the connection makes it, and the end of
// the client's connection closes it.
//
// When a pinned connection is lost, the client's connection stays if the proxy can send all
// its Calls again on the next one. It can for NFSv4.1: a Call names a session, a slot and a
// sequence number, and a server executes it once, whatever connection it comes on and in
// whatever order: RFC 8881 Section 2.10.6. A Call that arrives late on the lost connection,
// after the server has executed its replay or the next Call of its slot, is a retry or
// misordered, and the server does not execute it. If the server is still executing the Call,
// it answers the replay NFS4ERR_DELAY, as it would answer the client's own.
// CREATE_SESSION has a sequence number too, and a repeated BIND_CONN_TO_SESSION binds the
// connection it comes on, which is the only one. Other Calls have no such protection, here
// or on shared connections: package proxy has the rules. The first SEQUENCE binds the next connection to
// the session in the fore direction. The server tells the client in the flags of the Reply
// that it cannot call back (CB_PATH_DOWN), and the client binds the connection again, as
// clients do to repair a path.
//
// Each pinned connection costs the server a connection and the bridge memory, and has credits of its
// own. So hosts divide the places of pinned connections, as those of listeners, and the
// Calls on them (quota.Quota).

const (
	// PinnedReverse is how many credits the reverse direction has. Linux asks for 2.
	PinnedReverse = 4
	// PinnedReceives is how many Receives are posted on an idle pinned RDMA connection.
	PinnedReceives = 8
	// maxEvictions bounds the clients that are being closed for others.
	maxEvictions = 16
)

var (
	errPinned  = errors.New("proxy: the upstream has as many pinned connections as it may")
	errEvicted = errors.New("proxy: closed for a client of an address with fewer connections")
)

// Pinned is how many pinned lanes there are.
func (ls *Lanes) Pinned() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.pinned.len()
}

// len is how many pinned lanes there are. Lanes.mu is held.
func (ps *pinnedLanes) len() int { return ps.staying.Len() + len(ps.evicted) }

// all iterates over the pinned lanes, in no order. Lanes.mu is held.
func (ps *pinnedLanes) all() iter.Seq[*Lane] {
	return func(yield func(*Lane) bool) {
		for m := range ps.staying.All() {
			if !yield(m.Value) {
				return
			}
		}
		for l := range ps.evicted {
			if !yield(l) {
				return
			}
		}
	}
}

// pinnedPools are the pools of the pinned lanes.
func (ls *Lanes) pinnedPools() []*pool.Pool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	all := make([]*pool.Pool, 0, ls.pinned.len())
	for l := range ls.pinned.all() {
		all = append(all, l.pool)
	}
	return all
}

// PinnedStats calls f with the statistics of the pool of each pinned lane.
func (ls *Lanes) PinnedStats(f func(pool.Stats)) {
	for _, p := range ls.pinnedPools() {
		f(p.Stats())
	}
}

// SetMostPinned sets how many pinned lanes there may be. With 0 the upstream pins no client.
func (ls *Lanes) SetMostPinned(n int64) { ls.pinned.most.Store(n) }

// PinOptions are what a pinned lane takes from its client.
type PinOptions struct {
	Weight    int    // of the client
	Ports     uint64 // from which the first source port follows
	Preamble  []byte // the PROXY header of the connections
	MakesRoom bool   // a client of another host may be closed for this one
}

// Pin makes a lane for r alone. It fails when the upstream has as many pinned connections
// as it may and no other client has to give way, and after Close.
func (ls *Lanes) Pin(r *Client, o PinOptions) error {
	ps := &ls.pinned
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch {
	case ls.closed:
		return errClosing
	case int64(ps.len()) >= ps.most.Load() && !(o.MakesRoom && ls.makeRoom(r, o.Weight)):
		return errPinned
	}
	lo := laneOptions{
		only: r, loop: r.o.Loop, loops: 1, ports: o.Ports, preamble: o.Preamble,
		receives: PinnedReceives, reverse: PinnedReverse, calls: ls.o.PinnedCalls,
	}
	// Pinned connections are spread over the server's addresses in the same way as the seats of the
	// shared pool.
	switch {
	case ls.settings.apart():
		lo.endpoint = r.o.Endpoint
	case !ls.settings.Priority:
		lo.endpoint = ps.next
		ps.next++
	}
	h := ps.hosts[r.host]
	if h == nil {
		h = &pinnedHost{quota: ps.quota.Host()}
	}
	lo.quota = h.quota
	l, err := ls.newLane(lo)
	if err != nil {
		return err
	}
	r.lane = l
	ps.add(l, h, o.Weight)
	l.pool.Start()
	return nil
}

// add counts l, a pinned lane of a client of h, whose weight is w. Lanes.mu is held.
func (ps *pinnedLanes) add(l *Lane, h *pinnedHost, w int) {
	if h.n++; h.n == 1 {
		if ps.hosts == nil {
			ps.hosts = make(map[crowd.Host]*pinnedHost)
		}
		ps.hosts[l.opts.only.host] = h
	}
	h.quota.SetWeight(w)
	l.place.Value = l
	ps.staying.Add(&l.place, l.opts.only.o.Addr, w)
}

// remove undoes add. Lanes.mu is held.
func (ps *pinnedLanes) remove(l *Lane) {
	h := ps.hosts[l.opts.only.host]
	if h.n--; h.n == 0 {
		delete(ps.hosts, l.opts.only.host)
	}
	ps.staying.Remove(&l.place)
	delete(ps.evicted, l)
}

// Reweigh makes w the weight of the host of r, if r is pinned.
func (r *Client) Reweigh(w int) {
	l := r.lane
	if l.opts.only == nil {
		return
	}
	ls := l.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if h := ls.pinned.hosts[r.host]; h != nil {
		h.quota.SetWeight(w)
	}
	ls.pinned.staying.Reweigh(&l.place, w)
}

// unpin ends l, a pinned lane, unless it is ending. Lanes.mu is held.
func (l *Lane) unpin() {
	ls := l.lanes
	if l.leaving {
		return
	}
	l.leaving = true
	ls.ending.Go(func() {
		l.close()
		ls.mu.Lock()
		defer ls.mu.Unlock()
		ls.pinned.remove(l)
	})
}

// makeRoom closes the connection of another client, so that r, whose weight is w and which needs a pinned lane, can
// have its place. The client is one of the host that has the most of them, divided by its weight. If that is no more
// than the host of r would have with another one, makeRoom returns false. Those that are being closed already count for
// no host. Lanes.mu is held.
func (ls *Lanes) makeRoom(r *Client, w int) bool {
	ps := &ls.pinned
	host, ok := ps.staying.Yields(r.o.Addr, w)
	if !ok || len(ps.evicted) >= maxEvictions {
		return false
	}
	var victim *Lane // the newest that is idle, or the newest if none is
	for m := range ps.staying.Newest(host) {
		idle := !m.Value.pool.Busy()
		if idle || victim == nil {
			victim = m.Value
		}
		if idle {
			break
		}
	}
	ps.staying.Remove(&victim.place)
	if ps.evicted == nil {
		ps.evicted = make(map[*Lane]struct{})
	}
	ps.evicted[victim] = struct{}{}
	ps.makesRoom.Inc()
	ps.crowded.Line(ls.o.Log, zerolog.WarnLevel, "client_closed").Str("reason", "evicted_pin").
		Stringer("address", host).Stringer("newcomer", r.o.Addr).
		Msg("no more pinned connections are allowed; a client of the address with the most is closed for a newcomer")
	victim.opts.only.o.Peer.Close(errEvicted)
	return true
}
