package proxy

import (
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A clientQueue is where one client's Calls to one upstream wait: the pool that they go
// through, and the client's flows there. The flows are the pool's, u and pool are constant,
// and the rest belongs to the client's loop.
type clientQueue struct {
	u    *upstream
	pool *pool.Pool // one of u.pools, or that of pin or lane
	key  clientKey  // of the client's XIDs at u; constant

	flow   pool.Flow
	sticky *pool.Flow // of Calls that harm when repeated, where the server tells connections apart; made at first use

	pin     *pin        // nil for a shared pool, and on a lane
	lane    *laneClient // nil unless the client is on a lane
	session *session    // of the last Call that named one; nil if the table does not know that
	decided bool        // no later Call needs another pool
	minor0  bool        // the client has spoken NFSv4.0
}

// queueTo returns the client's queue at u, a new one at the first Call.
func (g *ledger) queueTo(u *upstream) *clientQueue {
	for _, q := range g.queues {
		if q.u == u {
			return q
		}
	}
	q := &clientQueue{
		u: u, pool: u.poolFor(g.addr()), decided: u.settings().Mode == ModeShared,
		key: u.p.xids.identity.clientKey(u.name, g.origin()),
	}
	q.flow = pool.Flow{Host: g.front.listener.p.hosts.at(g.host, q.pool), Weight: g.weight}
	g.queues = append(g.queues, q)
	return q
}

// stays reports whether all Calls take one connection, or its successor: the client's own, or a
// lane's.
func (q *clientQueue) stays() bool { return q.pin != nil || q.lane != nil }

// reverser returns what takes the client's Replies to reverse Calls, or nil.
func (q *clientQueue) reverser() reverser {
	switch {
	case q.lane != nil:
		return &q.lane.reverse
	case q.pin != nil:
		return q.pin.from
	}
	return nil
}

// decide returns the queue for the Call h, whose Analysis is a: q, or from now on the queue of a pinned
// connection or of a lane if h needs one. Calls that are under way stay in q. A NULL Call needs none:
// another bridge primes connections with it that no client uses.
//
// decide fails with errMoved when the client is on a lane of another upstream, which the listener had
// before a reload: one connection of a client never has its sessions on two connections of servers.
func (g *ledger) decide(q *clientQueue, h *oncrpc.Call, a *ulb.Analysis) (*clientQueue, error) {
	mode := q.u.settings().Mode
	if mode == ModeShared || h.Procedure == 0 || mode != ModePinned && !q.needsOne(h) {
		return q, nil
	}
	if q.needsOne(h) && slices.ContainsFunc(g.queues, func(o *clientQueue) bool { return o.lane != nil }) {
		return nil, errMoved
	}
	own := &clientQueue{u: q.u, decided: true, key: q.key}
	if mode == ModePinned {
		p, err := q.u.pin(g.front)
		if err != nil {
			return nil, err
		}
		own.pool, own.pin = p.pool, p
	} else {
		var back *laneConn
		signed := false
		if id, ok := nfs.SequenceSession(h.Message, a); ok {
			back, signed = q.u.table.connOf(id)
		}
		r := &laneClient{front: g.front, since: g.front.loop.Now()}
		if err := q.u.assign(r, back, signed || h.Flavor == oncrpc.FlavorGSS); err != nil {
			return nil, err
		}
		own.pool, own.lane = r.lane.pool, r
		own.flow = pool.Flow{Host: g.front.listener.p.hosts.atLane(g.host, own.pool, q.u), Weight: g.weight}
	}
	for i := range g.queues {
		if g.queues[i] == q {
			g.queues[i] = own // queueTo finds it first from now on
		}
	}
	g.queues = append(g.queues, q)
	return own, nil
}

// needsOne reports whether the Calls of the client have to stay on one connection: h is a COMPOUND of
// NFSv4.1 or later. A COMPOUND that cannot be read, as under RPCSEC_GSS privacy, may be one, unless the
// client has spoken NFSv4.0.
func (q *clientQueue) needsOne(h *oncrpc.Call) bool {
	if h.Program != oncrpc.ProgramNFS || h.Version != 4 || h.Procedure == 0 || h.Protection == oncrpc.ProtectControl {
		return false
	}
	minor, ok := nfs.MinorVersion(h)
	if ok && minor == 0 {
		q.minor0 = true
	}
	return ok && minor > 0 || !ok && !q.minor0
}

// flowOf returns the flow that c waits in.
func (q *clientQueue) flowOf(c *call) *pool.Flow {
	a := &c.rdma.Analysis
	if q.u.isRDMA || q.stays() || a.Class < ulb.NonIdempotent || a.Session != 0 {
		return &q.flow
	}
	if q.sticky == nil {
		g := &c.owner.front.ledger
		q.sticky = &pool.Flow{Host: q.flow.Host, Weight: g.weight, Sticky: true, Hash: addressHash(g.addr())}
	}
	return q.sticky
}

// reweigh makes w the client's weight.
func (q *clientQueue) reweigh(w int) {
	q.pool.Reweigh(&q.flow, w)
	if q.sticky != nil {
		q.pool.Reweigh(q.sticky, w)
	}
	if q.pin != nil {
		q.pin.reweigh(w)
	}
}

// forget takes the Calls that wait out of the pool, which hands them to upstream.Expired
// with err.
func (q *clientQueue) forget(batch *pool.Batch, err error) {
	batch.Forget(q.pool, &q.flow, err)
	if q.sticky != nil {
		batch.Forget(q.pool, q.sticky, err)
	}
}

// leave ends the queue of a client whose connection has ended, and in which no Call waits.
func (q *clientQueue) leave() {
	switch {
	case q.pin != nil:
		q.pin.release()
	case q.lane != nil:
		q.lane.reverse.end()
		q.u.table.leave(q.lane)
		q.lane.lane.leave(q.lane)
	}
}
