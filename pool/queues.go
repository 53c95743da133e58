package pool

import (
	"slices"
	"time"
)

// queues hold the Calls that wait in a pool: one queue for each loop, and one for each
// seat, for the flows that have to use that seat (bound.go).
//
// A credit that comes back on a loop goes to a Call of that loop's clients. A Call of
// another loop's client would cost both loops a cache miss for everything that the Call
// touches. This is only a preference: each queue knows how much its flows have been
// served, and a queue that is behind by more than its lag goes first, whichever loop has
// the credit. So the share of a client does not depend on how many others its loop has.
//
// The pool's lock is held during all methods.
type queues struct {
	shared  *shared // the pool's; constant
	byLoop  []*queue
	bySeat  []*queue
	n       int // Calls in all queues
	anySeat int // Calls in byLoop, which any seat may have

	since   time.Time     // when the first of them came; valid while there are some
	starved time.Duration // in which Calls waited, before that
}

// waited returns for how long Calls have waited: the time in which there was no credit for the next one.
func (qs *queues) waited() time.Duration {
	if qs.n == 0 {
		return qs.starved
	}
	return qs.starved + time.Since(qs.since)
}

// newQueues returns queues for a pool.
func newQueues(sh *shared, loops, seats int) queues {
	qs := queues{shared: sh}
	for range loops {
		qs.byLoop = append(qs.byLoop, &queue{shared: sh})
	}
	qs.grow(seats)
	return qs
}

// grow makes queues for seats, if there are fewer.
func (qs *queues) grow(seats int) {
	for len(qs.bySeat) < seats {
		qs.bySeat = append(qs.bySeat, &queue{shared: qs.shared})
	}
}

// maxLag is by how many octets of cost, for each unit of weight, a queue may be behind
// others if each of its hosts has one flow that waits, and largestLag how many times that it may
// be behind if they have more.
const (
	maxLag     = 4 * quantum
	largestLag = 8
)

// lag is by how many octets of cost, for each unit of weight, q may be behind others. A host with
// many flows dispatches more in one round, and a queue that goes first too soon costs each Call
// the cache misses of another loop. A host that has no neighbours shares only with itself. While few
// Calls go, so that q had no turn for some time, it is not behind at all.
func (qs *queues) lag(q *queue, now time.Time) int64 {
	if now.Sub(q.turned) > frozen {
		return 0
	}
	n := q.nFlows / max(1, q.inRing)
	if qs.shared.hosts > 1 {
		n = min(n, largestLag)
	}
	return maxLag * int64(max(1, n))
}

// push queues e behind the other Calls of its flow. here is the affinity of the calling
// loop, which is the client's when its first Call is queued.
func (qs *queues) push(e *Entry, here int) {
	e.Flow.fifoOf(e).push(e)
	qs.pushed(e.Flow, here)
}

// pushFront queues e before the other Calls of its flow.
func (qs *queues) pushFront(e *Entry, here int) {
	e.Flow.fifoOf(e).pushFront(e)
	qs.pushed(e.Flow, here)
}

// popOf removes and returns the next entry of pl, whose turn it need not be.
func (qs *queues) popOf(pl *place) *Entry {
	q, f := pl.queue, pl.flow()
	e := f.nextFIFO().pop()
	n := e.cost()
	pl.turn.Deficit = max(pl.turn.Deficit-n, -n-quantum) // while all credits are of the reserve, it would owe ever more
	f.turn.Deficit -= n
	weight := q.weight
	if !pl.turn.In() {
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
	case f.turn.Deficit < f.price():
		pl.flows.Pass(&f.turn)
	}
	qs.count(f, -1)
	switch {
	case pl.n == 0 || !pl.turn.In():
	case !q.shared.lately(pl.host):
		pl.turn.Deficit = min(pl.turn.Deficit, 0)
		q.ring.Pass(&pl.turn)
	case pl.turn.Deficit < pl.price():
		q.ring.Pass(&pl.turn)
	}
	return e
}

// popBehind removes up to most Calls that follow e, which popOf has just removed from pl, as long as it is the turn of their
// flow, and links them behind e. It returns how many.
func (qs *queues) popBehind(e *Entry, pl *place, most int) (n int) {
	f, last := e.Flow, e
	for ; n < most && f.active() && pl.turn.In() && pl.queue.front() == pl && pl.flow() == f; n++ {
		if !f.nextFIFO().head.follows(e) {
			break
		}
		last.next = qs.popOf(pl)
		last = last.next
	}
	return n
}

// turn returns the queue whose turn it is, among those in which a host that is not set aside has
// a Call that seat, whose affinity is loop, may have. If there is none, no host waits in the queue
// that it returns.
func (qs *queues) turn(loop, seat int, now time.Time) *queue {
	q := qs.byLoop[qs.index(loop)]
	if s := qs.bySeat[seat]; s.waits() && (!q.waits() || s.served <= q.served) {
		q = s
	}
	if last := leastServed(nil, qs.byLoop); last != nil && last != q && (!q.waits() || last.served < q.served && last.served+qs.lag(last, now) < q.served) {
		q = last
	}
	return q
}

// index returns the index in byLoop of the queue of a loop.
func (qs *queues) index(loop int) int { return max(loop, 0) % len(qs.byLoop) }

// blocks reports whether a waiting Call of a host that is not set aside goes before the next
// Call of f.
func (qs *queues) blocks(f *Flow) bool {
	return f.seatQueue > 0 && qs.bySeat[f.seatQueue-1].waits() || qs.anySeat > 0 && leastServed(nil, qs.byLoop) != nil
}

// forget removes f and returns a list of its entries.
func (qs *queues) forget(f *Flow) *Entry {
	list := join(f.waiting[0].head, f.waiting[1].head)
	f.waiting = [2]fifo{}
	qs.removed(f, length(list))
	return list
}

// waiting returns the flows that have waiting Calls.
func (qs *queues) waiting() (flows []*Flow) {
	var places []*place
	for _, q := range slices.Concat(qs.byLoop, qs.bySeat) {
		places = slices.AppendSeq(places, q.ring.All)
	}
	for h := range qs.shared.aside.All {
		for pl := h.places; pl != nil; pl = pl.another {
			places = append(places, pl)
		}
	}
	for _, pl := range places {
		flows = slices.AppendSeq(flows, pl.flows.All)
	}
	return flows
}

// drain empties all queues and returns a list of all entries.
func (qs *queues) drain() (list *Entry) {
	for _, f := range qs.waiting() {
		list = join(qs.forget(f), list)
	}
	return list
}

// expire removes the entries that were queued before t and returns them as a list.
func (qs *queues) expire(t time.Time) (list *Entry) {
	for _, f := range qs.waiting() {
		old := join(f.waiting[0].expire(t), f.waiting[1].expire(t))
		qs.removed(f, length(old))
		list = join(old, list)
	}
	return list
}

// removed ends the count of n Calls that f has lost without a turn.
func (qs *queues) removed(f *Flow, n int) {
	if n == 0 {
		return
	}
	if f.empty() {
		f.place.withdraw(f)
	}
	qs.count(f, -n)
}

// pushed counts a Call that f has got. A queue that was empty has nothing to catch up with.
func (qs *queues) pushed(f *Flow, here int) {
	q := qs.of(f, here)
	if !q.waits() {
		o := leastServed(leastServed(nil, qs.byLoop), qs.bySeat)
		if o != nil {
			q.served = max(q.served, o.served)
		}
	}
	pl := f.place
	if pl == nil || pl.queue != q {
		pl = f.host().in(q)
		f.place = pl
	}
	resumes := false
	if !f.active() {
		resumes = f.resumes(q)
		f.turn.Of = f
		f.smallInRow = 0
		pl.flows.Put(&f.turn, resumes)
		q.nFlows++
		pl.weight = max(pl.weight, f.weight())
	}
	qs.count(f, 1)
	if pl.n == 1 {
		pl.began(resumes)
	}
}

// of returns the queue of f: the queue of its seat if it has to use one, otherwise the
// queue of its client's loop, which is here if f has none yet.
func (qs *queues) of(f *Flow, here int) *queue {
	if f.seatQueue > 0 {
		return qs.bySeat[f.seatQueue-1]
	}
	if f.loopQueue == 0 {
		f.loopQueue = int32(1 + qs.index(here))
	}
	return qs.byLoop[f.loopQueue-1]
}

// count adds n to the number of Calls of f that wait.
func (qs *queues) count(f *Flow, n int) {
	pl, waited := f.place, qs.n > 0
	qs.n += n
	pl.queue.n += n
	switch waits := qs.n > 0; {
	case waits && !waited:
		qs.since = time.Now()
	case waited && !waits:
		qs.starved += time.Since(qs.since)
	}
	if f.seatQueue == 0 {
		qs.anySeat += n
	}
	if pl.n += n; pl.n == 0 {
		pl.ended()
	}
}

// leastServed returns the least served of last, which may be nil, and the queues in list in which
// a host that is not set aside waits.
func leastServed(last *queue, list []*queue) *queue {
	for _, q := range list {
		if q.waits() && (last == nil || q.served < last.served) {
			last = q
		}
	}
	return last
}
