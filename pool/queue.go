package pool

import (
	"time"

	"github.com/rdmabridge/rdmabridge/pool/drr"
)

// quantum is the cost in octets that a host or a flow of weight 1 may spend in one round. It
// pays for sixteen small Calls, or for a part of a large Call, for which they save over several
// rounds. A quantum of one small Call would be fairer. But then the Replies of a client would
// also arrive one at a time, and the bridge would make a system call for each: eight times as
// many system calls with 256 clients of 16 Calls.
const quantum = 64 << 10

// A queue schedules the hosts that wait in it by deficit round robin, and the flows of each host
// among themselves in the same way. A host or a flow without a waiting Call saves nothing. The
// caller of each method holds the pool's lock.
type queue struct {
	shared *shared         // the pool's; constant
	ring   drr.Ring[place] // hosts that have waiting Calls and are not set aside
	n      int             // entries
	nFlows int             // flows that have waiting Calls
	inRing int             // places in the ring
	weight int             // sum of place.share over the ring
	served int64           // total cost in octets dispatched for a host of weight 1
	turned time.Time       // when a Call last went in its host's turn

	// Places of hosts that wait, have no Call outstanding that is not old, and may have a credit of the reserve.
	known drr.Ring[place] // the host holds no credit and was answered, or nobody has looked
	fresh drr.Ring[place] // it holds none and was not answered
	stuck drr.Ring[place] // it was answered, and its Calls are old
}

// waits reports whether a Call of a host in the ring waits.
func (q *queue) waits() bool { return !q.ring.Empty() }

// front returns the place whose turn it is. The ring must not be empty.
func (q *queue) front() *place { return q.ring.Choose((*place).price, (*place).gain) }
