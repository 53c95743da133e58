package pool

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/pool/ages"
	"github.com/rdmabridge/rdmabridge/pool/drr"
)

// A Host is what a pool counts as one client: the flows of all connections of one address.
// Opening more connections gains a host nothing. The zero value is ready to use, in one pool.
// The pool's lock guards all of it. Thousands of hosts are idle, so the counts have 32 bits.
type Host struct {
	// Spread divides the weight of a host that waits in several pools among them. It is set before
	// the first Submit; nil for a host of one pool.
	Spread *Spread

	held     int32             // Calls outstanding
	unproven int32             // of held: share.go
	holder   int32             // 1 + index in shared.holders, while held is not 0
	aside    drr.Turn[Host]    // in shared.aside, while the host has no room in its window: no place is in the ring of its queue
	places   *place            // where Calls of the host wait, or have waited, linked by place.another
	ages     ages.Count[int32] // of the Calls outstanding
	answered uint32            // Pool.age when the host got its last Reply
	replies  ages.Count[int32] // Replies that the host got
	waiting  int32             // places where Calls wait
	rings    int32             // places that are in the rings of their queues
	over     int32             // Spread.n when the weight was divided last
}

// A Spread counts the pools in which Calls of one host wait. Its Hosts in these pools have it in
// common. The zero value is ready to use.
type Spread struct{ n atomic.Int32 }

// pools is how many pools there are, at least 1.
func (s *Spread) pools() int32 {
	if s == nil {
		return 1
	}
	return max(1, s.n.Load())
}

// add counts a pool more, or one less.
func (s *Spread) add(n int32) {
	if s != nil {
		s.n.Add(n)
	}
}

// A place is where the Calls of one host wait in one queue. Its flows take turns.
type place struct {
	turn    drr.Turn[place] // in queue.ring while Calls wait, unless the host is set aside
	host    *Host           // constant, as the next two
	queue   *queue
	another *place // of the same host, in another queue

	flows drr.Ring[Flow] // flows that have waiting Calls
	n     int            // waiting Calls

	weight int // the largest weight of the flows
	share  int // how much of queue.weight the place has, while it is in the ring

	list   *drr.Ring[place] // known, fresh or stuck of the queue, or nil
	listed drr.Turn[place]  // in list
}

// unitWeight is the share of a host of weight 1 that waits in one queue. A host that waits in
// several queues, or in several pools, divides its weight among them.
const unitWeight = 64

// queued returns how many Calls of h wait.
func (h *Host) queued() (n int) {
	for pl := h.places; pl != nil; pl = pl.another {
		n += pl.n
	}
	return n
}

// in returns the host's place in q.
func (h *Host) in(q *queue) *place {
	for pl := h.places; pl != nil; pl = pl.another {
		if pl.queue == q {
			return pl
		}
	}
	pl := &place{host: h, queue: q, another: h.places}
	pl.turn.Of, pl.listed.Of = pl, pl
	h.places = pl
	return pl
}

// price is the cost of the next Call of the place, whose flows have waiting Calls.
func (pl *place) price() int { return pl.flow().price() }

// gain is what the place may spend in one round.
func (pl *place) gain() int {
	if h := pl.host; h.Spread != nil && h.over != h.Spread.pools() {
		h.divide() // it waits in more pools than before, or in fewer
	}
	return quantum * pl.share / unitWeight
}

// flow returns the flow whose Call goes next.
func (pl *place) flow() *Flow { return pl.flows.Choose((*Flow).price, (*Flow).gain) }

// enter puts the place in the ring of its queue, unless it is in it, or the host is set aside. resumes says whether the
// place goes on with the turn it had.
func (pl *place) enter(resumes bool) {
	if pl.turn.In() || pl.host.aside.In() {
		return
	}
	pl.queue.ring.Put(&pl.turn, resumes)
	pl.queue.inRing++
	pl.host.rings++
	pl.host.divide()
}

// leave takes the place out of the ring of its queue, if it is in it.
func (pl *place) leave() {
	if !pl.turn.In() {
		return
	}
	pl.queue.ring.Remove(&pl.turn)
	pl.queue.inRing--
	pl.queue.weight -= pl.share
	pl.share = 0
	pl.host.rings--
	pl.host.divide()
}

// withdraw takes f, which has no waiting Calls any more, out of the turns of the place's flows.
func (pl *place) withdraw(f *Flow) {
	pl.flows.Remove(&f.turn)
	pl.queue.nFlows--
}

// divide divides the host's weight among the pools in which it waits, and among the rings in which it
// is.
func (h *Host) divide() {
	h.over = h.Spread.pools()
	for pl := h.places; pl != nil; pl = pl.another {
		if pl.turn.In() {
			pl.queue.weight -= pl.share
			pl.share = max(1, unitWeight*pl.weight/int(h.rings*h.over))
			pl.queue.weight += pl.share
		}
	}
}

// weigh finds the place's weight, which is the largest of its flows.
func (pl *place) weigh() {
	pl.weight = 0
	for f := range pl.flows.All {
		pl.weight = max(pl.weight, f.weight())
	}
	pl.host.divide()
	if pl.turn.In() {
		pl.turn.Deficit = min(pl.turn.Deficit, max(pl.gain(), pl.price()))
	}
}

// began counts a place in which Calls wait now and did not before. resumes says whether it goes on
// with the turn it had.
func (pl *place) began(resumes bool) {
	if pl.host.waiting++; pl.host.waiting == 1 {
		pl.queue.shared.hosts++
		pl.host.Spread.add(1)
	}
	pl.enter(resumes)
	pl.relist()
}

// ended ends the count of a place in which no Call waits any more.
func (pl *place) ended() {
	if pl.host.waiting--; pl.host.waiting == 0 {
		sh := pl.queue.shared
		sh.hosts--
		pl.host.Spread.add(-1)
		if pl.host.aside.In() {
			sh.aside.Remove(&pl.host.aside)
		}
	}
	pl.weight = 0
	pl.leave()
	pl.relist()
}

// relist puts the place in the list of its queue that fits the host's Calls, or in none.
func (pl *place) relist() {
	sh, h := pl.queue.shared, pl.host
	if pl.n == 0 || h.ages.Young(sh.age) > 0 || h.held > 0 && !sh.lately(h) {
		pl.moveTo(nil)
	} else if pl.list == nil || pl.list == &pl.queue.stuck && h.held == 0 {
		pl.moveTo(&pl.queue.known)
	}
}

// relist does what place.relist does, for all places of the host.
func (h *Host) relist() {
	for pl := h.places; pl != nil; pl = pl.another {
		pl.relist()
	}
}

// rejoin gives the host, which was set aside, its turns again.
func (sh *shared) rejoin(h *Host) {
	sh.aside.Remove(&h.aside)
	for pl := h.places; pl != nil; pl = pl.another {
		if pl.n > 0 {
			pl.enter(false)
		}
	}
}

// idle reports whether the pool has nothing of the host to remember.
func (h *Host) idle() bool { return h.held == 0 && h.waiting == 0 }

// moveTo takes pl out of its list and puts it at the end of to, which may be nil. A place that
// is in to already keeps its turn.
func (pl *place) moveTo(to *drr.Ring[place]) {
	if pl.list == to {
		return
	}
	if pl.list != nil {
		pl.list.Remove(&pl.listed)
	}
	if pl.list = to; to != nil {
		to.Add(&pl.listed)
	}
}
