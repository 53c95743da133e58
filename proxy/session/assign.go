package session

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// Assign assigns r to a lane, at its first Call. If the Call names session id, and the client of that session is away,
// the lane is that of the connection on which the server calls the session, unless that has ended: the client has a
// session there. Assign fails after Close.
//
// Otherwise a client that signs its Calls with RPCSEC_GSS gets a lane on which its host has no other client: see
// signedLanes.
func (ls *Lanes) Assign(r *Client, id nfs.SessionID, named, signed bool) error {
	var conn *Conn
	if named {
		c, s := ls.Table.connOf(id)
		conn, signed = c, signed || s
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed || len(ls.all) == 0 {
		return errClosing
	}
	var best *Lane
	back := conn != nil && conn.serves() && !conn.lane.leaving
	if back {
		best = conn.lane
	} else {
		for _, l := range ls.all {
			if (!ls.settings.apart() || l.opts.endpoint == r.o.Endpoint) && (best == nil || l.betterThan(best, r)) {
				best = l
			}
		}
	}
	if signed && !back && best.hosts[r.host] > 0 && len(ls.all) < signedLanes {
		l, err := ls.add(best.opts.endpoint)
		if err != nil {
			return err
		}
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
	best.hosts[r.host]++
	r.lane, r.table, r.since = best, ls.Table, ls.o.Now()
	return nil
}

// betterThan reports whether l is better than o for r: it does not wait for the server to answer, it has
// fewer clients of the same host, fewer clients, the client's own loop. A client that has several
// connections, such as Linux with nconnect, has them on different lanes, as far as there are enough: for
// the server they are different connections then, too. Lanes.mu is held.
func (l *Lane) betterThan(o *Lane, r *Client) bool {
	if a, b := l.waits(), o.waits(); a != b {
		return b
	}
	if a, b := l.hosts[r.host], o.hosts[r.host]; a != b {
		return a < b
	}
	near, otherNear := l.opts.loop == r.o.Loop, o.opts.loop == r.o.Loop
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
