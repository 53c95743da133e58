package pool

import "time"

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
	shared *shared     // the pool's; constant
	ring   ring[place] // hosts that have waiting Calls and are not set aside
	n      int         // entries
	nFlows int         // flows that have waiting Calls
	inRing int         // places in the ring
	weight int         // sum of place.share over the ring
	served int64       // total cost in octets dispatched for a host of weight 1
	turned time.Time   // when a Call last went in its host's turn

	// Places of hosts that wait, have no Call outstanding that is not old, and may have a credit of the reserve.
	known ring[place] // the host holds no credit and was answered, or nobody has looked
	fresh ring[place] // it holds none and was not answered
	stuck ring[place] // it was answered, and its Calls are old
}

// waits reports whether a Call of a host in the ring waits.
func (q *queue) waits() bool { return q.ring.first != nil }

// pushed counts a Call that f has queued.
func (q *queue) pushed(f *Flow) {
	q.n++
	pl := f.place
	if pl == nil || pl.queue != q {
		pl = f.host().in(q)
		f.place = pl
	}
	resumes := false
	if !f.active() {
		resumes = f.resumes(q)
		f.turn.of = f
		f.smallInRow = 0
		pl.flows.put(&f.turn, resumes)
		q.nFlows++
		pl.weight = max(pl.weight, f.weight())
	}
	if pl.n++; pl.n == 1 {
		pl.began(resumes)
	}
}

// front returns the place whose turn it is. The ring must not be empty.
func (q *queue) front() *place { return q.ring.choose((*place).price, (*place).gain) }

// popOf removes and returns the next entry of pl, whose turn it need not be.
func (q *queue) popOf(pl *place) *Entry {
	f := pl.flow()
	e := f.nextFIFO().pop()
	n := e.cost()
	pl.turn.deficit = max(pl.turn.deficit-n, -n-quantum) // while all credits are of the reserve, it would owe ever more
	f.turn.deficit -= n
	weight := q.weight
	if !pl.turn.in() {
		weight += unitWeight * pl.weight // set aside, it competes all the same
	}
	q.served += int64(n*unitWeight) / int64(max(weight, 1))
	if f.smallInRow++; e.large() {
		f.smallInRow = 0
	}
	switch {
	case f.empty():
		f.emptied = q.served
		pl.withdraw(f)
	case f.turn.deficit < f.price():
		pl.flows.pass(&f.turn)
	}
	q.removed(pl, 1)
	switch {
	case pl.n == 0 || !pl.turn.in():
	case !q.shared.lately(pl.host):
		pl.turn.deficit = min(pl.turn.deficit, 0)
		q.ring.pass(&pl.turn)
	case pl.turn.deficit < pl.price():
		q.ring.pass(&pl.turn)
	}
	return e
}

// removed ends the count of n entries of pl.
func (q *queue) removed(pl *place, n int) {
	q.n -= n
	if pl.n -= n; pl.n == 0 && n > 0 {
		pl.ended()
	}
}

// places yields the places in which Calls wait. The caller may remove their Calls. It is an
// iter.Seq.
func (q *queue) places(yield func(*place) bool) {
	for pl := range q.ring.all {
		if !yield(pl) {
			return
		}
	}
	for h := range q.shared.aside.all {
		for pl := h.places; pl != nil; pl = pl.another {
			if pl.queue == q && pl.n > 0 && !yield(pl) {
				return
			}
		}
	}
}

// flows yields the flows that have waiting Calls. The caller may remove these Calls. It is an
// iter.Seq.
func (q *queue) flows(yield func(*Flow) bool) {
	for pl := range q.places {
		for f := range pl.flows.all {
			if !yield(f) {
				return
			}
		}
	}
}
