package proxy

import (
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// A clientQueue is where one client's Calls to one upstream wait: the pool that they go
// through, and the client's flows there. The flows are the pool's, u and pool are constant,
// and the rest belongs to the client's loop.
type clientQueue struct {
	u    *upstream.Upstream
	pool *pool.Pool         // one of u.pools, or that of a lane
	key  identity.ClientKey // of the client's XIDs at u; constant
	rows *observe.Table     // counts the Calls of the listener's clients on this loop to u; constant

	flow   pool.Flow
	sticky *pool.Flow // of Calls that harm when repeated, where the server tells connections apart; made at first use

	lane    *session.Client // nil unless the client is on a lane
	session session.Record
	decided bool // no later Call needs another pool
}

// queueTo returns the client's queue at u, a new one at the first Call.
func (f *front) queueTo(u *upstream.Upstream) *clientQueue {
	for _, q := range f.queues {
		if q.u == u {
			return q
		}
	}
	q := &clientQueue{
		u: u, pool: u.PoolFor(f.addr()), decided: u.Settings().SharesAll(),
		key: u.Identity.ClientKey(u.Name, f.origin()), rows: f.tableOf(u),
	}
	q.flow = pool.Flow{Host: q.u.Hosts.At(f.host(), q.pool, nil), Weight: f.weight()}
	f.queues = append(f.queues, q)
	return q
}

// stays reports whether all Calls take one connection, or its successor.
func (q *clientQueue) stays() bool { return q.lane != nil }

// reverser returns what takes the client's Replies to reverse Calls, or nil.
func (q *clientQueue) reverser() session.Reverser {
	if q.lane == nil {
		return nil
	}
	return q.lane.Reverser()
}

// chooseQueue returns the queue for the Call h, whose Analysis is a: q, or from now on the queue of a lane
// if h needs one. Calls that are under way stay in q. A NULL Call needs none:
// another bridge primes connections with it that no client uses.
//
// chooseQueue fails with session.ErrMoved when the client is on a lane of another upstream, which the listener had
// before a reload: one connection of a client never has its sessions on two connections of servers.
func (f *front) chooseQueue(q *clientQueue, h *oncrpc.Call, a *ulb.Analysis) (*clientQueue, error) {
	o := q.u.Settings()
	if o.SharesAll() || h.Procedure == 0 || !o.Pins() && !q.session.NeedsLane(h) {
		return q, nil
	}
	shares := func(o *clientQueue) bool { return o.lane != nil && !o.lane.Pinned() }
	if q.session.NeedsLane(h) && slices.ContainsFunc(f.queues, shares) {
		return nil, session.ErrMoved
	}
	own := &clientQueue{u: q.u, decided: true, key: q.key, rows: q.rows}
	own.lane = f.newLaneClient(q.u)
	if o.Pins() {
		if err := q.u.Lanes.Pin(own.lane, f.pinOptions(q.u)); err != nil {
			return nil, err
		}
		own.pool = own.lane.Pool()
	} else {
		id, named := nfs.SequenceSession(h.Message, a)
		if err := q.u.Lanes.Assign(own.lane, id, named, h.Flavor == oncrpc.FlavorGSS); err != nil {
			return nil, err
		}
		own.pool = own.lane.Pool()
		own.flow = pool.Flow{Host: q.u.Hosts.At(f.host(), own.pool, &q.u.LaneGroup), Weight: f.weight()}
	}
	for i := range f.queues {
		if f.queues[i] == q {
			f.queues[i] = own // queueTo finds it first from now on
		}
	}
	f.queues = append(f.queues, q)
	return own, nil
}

// flowOf returns the flow that a Call of f waits in whose Analysis is a.
func (q *clientQueue) flowOf(f *front, a *ulb.Analysis) *pool.Flow {
	if q.u.IsRDMA || q.stays() || a.Class < ulb.NonIdempotent || a.Session != 0 {
		return &q.flow
	}
	if q.sticky == nil {
		q.sticky = &pool.Flow{Host: q.flow.Host, Weight: f.weight(), Sticky: true, Hash: fnv.Address(f.addr())}
	}
	return q.sticky
}

// reweigh makes w the client's weight.
func (q *clientQueue) reweigh(w int) {
	q.pool.Reweigh(&q.flow, w)
	if q.sticky != nil {
		q.pool.Reweigh(q.sticky, w)
	}
	if q.lane != nil {
		q.lane.Reweigh(w)
	}
}

// forget takes the Calls that wait out of the pool, which hands them to unsentCalls.Expired
// with err.
func (q *clientQueue) forget(batch *pool.Batch, err error) {
	batch.Forget(q.pool, &q.flow, err)
	if q.sticky != nil {
		batch.Forget(q.pool, q.sticky, err)
	}
}

// leave ends the queue of a client whose connection has ended, and in which no Call waits.
func (q *clientQueue) leave() {
	if q.lane != nil {
		q.lane.Leave()
	}
}

// newLaneClient returns f as a client of lanes. It has no lane of u yet.
func (f *front) newLaneClient(u *upstream.Upstream) *session.Client {
	o := session.ClientOptions{Peer: (*lanePeer)(f), Addr: f.addr(), Loop: f.loop.number()}
	if s := u.Settings(); s.Partitioned() {
		o.Endpoint = reach.EndpointFor(o.Addr, len(s.Endpoints))
	}
	return u.Lanes.NewClient(o)
}

// pinOptions are what a pinned lane takes from the client of f.
func (f *front) pinOptions(u *upstream.Upstream) session.PinOptions {
	o := session.PinOptions{
		Weight: f.weight(), Ports: uint64(f.origin().Hash()), MakesRoom: f.settings().MakesRoom(),
	}
	if u.Settings().NamesClients {
		o.Preamble = proxyheader.AppendClient(nil, f.peer, f.client.local())
	}
	return o
}

// A lanePeer is a front as the client of a lane. session.Peer.
type lanePeer front

// Gone is part of session.Peer.
func (p *lanePeer) Gone() bool { return (*front)(p).Gone() }

// Close is part of session.Peer.
func (p *lanePeer) Close(reason error) { (*front)(p).Close(reason) }

// Drain is part of session.Peer.
func (p *lanePeer) Drain() { (*front)(p).Drain() }

// Listens is part of session.Peer.
func (p *lanePeer) Listens() bool { return (*front)(p).listens() }

// Deaf is part of session.Peer.
func (p *lanePeer) Deaf() bool { return p.client.deaf() }

// CallBack is part of session.Peer.
func (p *lanePeer) CallBack(m []byte, done session.Releaser, from session.Reverser) bool {
	return p.client.callBack(m, done, from)
}
