package session

import (
	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/pool"
)

// NewClient returns a client that has no lane yet: Assign or Pin gives it one.
func (ls *Lanes) NewClient(o ClientOptions) *Client {
	return &Client{o: o, host: crowd.HostOf(o.Addr), loop: ls.o.Loops[o.Loop]}
}

// Pool returns the pool of the connection that carries the Calls of r.
func (r *Client) Pool() *pool.Pool { return r.lane.pool }

// Pinned reports whether r has its lane for itself.
func (r *Client) Pinned() bool { return r.lane.opts.only != nil }

// Bound reports whether no other connection may carry the Calls of r than one that has carried some of them. Any
// goroutine.
func (r *Client) Bound() bool { return r.bound.Load() != nil }

// Reverser takes the answers of r to reverse Calls.
func (r *Client) Reverser() Reverser { return &r.reverse }

// Leave ends the assignment of r, whose connection has ended.
func (r *Client) Leave() {
	r.reverse.end()
	if r.table != nil {
		r.table.leave(r)
	}
	ls := r.lane.lanes
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if r.Pinned() {
		r.lane.unpin()
	} else {
		r.lane.leave(r)
	}
}

// Learns reports whether the table is to learn from the Reply to a Call of session id.
func (r *Client) Learns(id nfs.SessionID) bool {
	if id == r.seen || r.table == nil {
		return false
	}
	learns, settled := r.table.look(id, r)
	if settled {
		r.seen = id
	}
	return learns
}

// Hides reports whether the table is to learn from the success of a Call that only client and server
// can read.
func (r *Client) Hides(h *oncrpc.Call) bool {
	return r.table != nil && h.Protection == oncrpc.ProtectPrivacy && h.Program == oncrpc.ProgramNFS &&
		h.Version == 4 && !r.settled.Load()
}
