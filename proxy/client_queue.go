package proxy

import (
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A clientQueue is one client's way to one upstream: the pool that its Calls take, and
// its places in the queue there. All but flow and steady, which are the pool's, is owned by
// the client's loop, and u and pool are constant.
type clientQueue struct {
	u    *upstream
	pool *pool.Pool // one of u.pools, or that of pin

	flow   pool.Flow
	steady pool.Flow // of Calls that harm when repeated, if the server tells connections apart

	pin     *pin // nil for the shared pool
	settled bool // nothing that the client sends changes it
	minor0  bool // NFSv4.0 was seen
}

// queueTo is the queueTo to u of the client at peer.
func (g *ledger) queueTo(u *upstream, peer netip.Addr) *clientQueue {
	for _, ln := range g.queues {
		if ln.u == u {
			return ln
		}
	}
	ln := &clientQueue{u: u, pool: u.poolFor(peer), settled: u.pins.most.Load() == 0}
	ln.flow.Weight = g.weight
	ln.steady = pool.Flow{Weight: g.weight, Steady: true, Place: addressHash(peer)}
	g.queues = append(g.queues, ln)
	return ln
}

// pinned is the lane that the Call h takes, which came to be on ln: one with a
// connection of its own if it has to. Calls on their way stay where they are.
func (g *ledger) pinned(ln *clientQueue, h *oncrpc.Call, peer netip.Addr) (*clientQueue, error) {
	if mode := ln.u.settings().Mode; mode == ModeShared || mode != ModePinned && !ln.needsPin(h) {
		return ln, nil
	}
	p, err := ln.u.pin(g.owner, peer)
	if err != nil {
		return nil, err
	}
	own := &clientQueue{u: ln.u, pool: p.pool, pin: p, settled: true}
	for i := range g.queues {
		if g.queues[i] == ln {
			g.queues[i] = own // found before ln from now on
		}
	}
	g.queues = append(g.queues, ln)
	return own, nil
}

// needsPin reports whether h is what only a connection of the client's own carries
// well: a COMPOUND of NFSv4.1 or later. One that cannot be read, as under RPCSEC_GSS
// privacy, may be, unless the client has spoken NFSv4.0.
func (ln *clientQueue) needsPin(h *oncrpc.Call) bool {
	if h.Program != oncrpc.ProgramNFS || h.Version != 4 || h.Procedure == 0 || h.Protection == oncrpc.ProtectControl {
		return false
	}
	minor, ok := nfs.MinorVersion(h)
	if ok && minor == 0 {
		ln.minor0 = true
	}
	return ok && minor > 0 || !ok && !ln.minor0
}

// flowOf is c's place in the queue.
func (ln *clientQueue) flowOf(c *call) *pool.Flow {
	if a := &c.rdma.Analysis; !ln.u.isRDMA && a.Class >= ulb.NonIdempotent && a.Session == 0 {
		return &ln.steady
	}
	return &ln.flow
}

// reweigh makes w the client's weight.
func (ln *clientQueue) reweigh(w int) {
	ln.pool.Reweigh(&ln.flow, w)
	ln.pool.Reweigh(&ln.steady, w)
}

// forget takes out what waits. Its owner hears of it with err.
func (ln *clientQueue) forget(err error) {
	ln.pool.Forget(&ln.flow, err)
	ln.pool.Forget(&ln.steady, err)
}
