package pool

import "time"

// quantum is how many octets of cost a flow of weight 1 may send in one round: sixteen
// small Calls, or a part of a large one, for which the flow saves. One small Call a
// round would be fairer still, but then the Replies of a client would come one at a
// time too, and each would cost a system call: with 256 clients of 16 Calls, eight
// times as many.
const quantum = 64 << 10

// A queue is deficit round robin over flows. In each round a flow may spend quantum
// octets times its weight more than it has saved. A flow without a waiting Call saves
// nothing. The pool's lock is held during all methods.
type queue struct {
	tail   *Flow // last flow of the ring; tail.next is the one whose turn it is
	n      int   // entries
	weight int   // sum over the flows in the ring
	served int64 // octets of cost dispatched for each unit of weight in the ring, ever
}

// push queues e behind the other Calls of its flow.
func (q *queue) push(e *Entry) {
	e.Flow.fifoOf(e).push(e)
	q.n++
	q.activate(e.Flow)
}

// pushFront queues e before the other Calls of its flow.
func (q *queue) pushFront(e *Entry) {
	e.Flow.fifoOf(e).pushFront(e)
	q.n++
	q.activate(e.Flow)
}

// pop removes the next entry in fair order. q.n > 0.
func (q *queue) pop() *Entry {
	for {
		f := q.tail.next
		l := f.nextFIFO()
		if n := l.head.cost(); f.deficit < n {
			// The turn of a flow is over when it cannot pay for its next Call, and it gets
			// its quantum when its next turn begins. A flow that is alone needs no rounds.
			if f == q.tail {
				f.deficit = n
			} else {
				f.deficit += quantum * f.weight()
				if f.deficit < n {
					q.tail = f
					continue
				}
			}
		}
		e := l.pop()
		f.deficit -= e.cost()
		q.served += int64(e.cost() / q.weight)
		q.n--
		if f.smallInRow++; e.large() {
			f.smallInRow = 0
		}
		switch {
		case f.empty():
			q.deactivate(q.tail)
		case f.deficit < f.nextFIFO().head.cost():
			q.tail = f // the next flow's turn
		}
		return e
	}
}

// reweigh makes w the weight of f. f may not spend more in this turn than the new weight
// would have given it.
func (q *queue) reweigh(f *Flow, w int) {
	was := f.weight()
	f.Weight = w
	if f.active {
		q.weight += f.weight() - was
		f.deficit = min(f.deficit, max(quantum*f.weight(), f.nextFIFO().head.cost()))
	}
}

// forget removes f and returns a list of its entries.
func (q *queue) forget(f *Flow) *Entry {
	if !f.active {
		return nil
	}
	list := join(f.waiting[0].head, f.waiting[1].head)
	q.n -= length(list)
	q.remove(f)
	return list
}

// drain empties the queue and returns a list of all entries.
func (q *queue) drain() *Entry {
	var list *Entry
	for q.tail != nil {
		list = join(q.forget(q.tail.next), list)
	}
	return list
}

// expire removes the entries that were queued before t, and returns a list of them.
func (q *queue) expire(t time.Time) *Entry {
	var list *Entry
	for _, f := range q.flows() {
		for i := range f.waiting {
			old := f.waiting[i].expire(t)
			q.n -= length(old)
			list = join(old, list)
		}
		if f.empty() {
			q.remove(f)
		}
	}
	return list
}

// flows returns the flows that wait in q, in the order of their turns.
func (q *queue) flows() (list []*Flow) {
	if q.tail == nil {
		return nil
	}
	for f := q.tail.next; ; f = f.next {
		list = append(list, f)
		if f == q.tail {
			return list
		}
	}
}

// activate adds f to the ring if it is not in it. Its turn comes last.
func (q *queue) activate(f *Flow) {
	if f.active {
		return
	}
	f.active = true
	f.deficit, f.smallInRow = 0, 0
	q.weight += f.weight()
	if q.tail == nil {
		f.next = f
	} else {
		f.next = q.tail.next
		q.tail.next = f
	}
	q.tail = f
}

// deactivate removes the flow after prev from the ring.
func (q *queue) deactivate(prev *Flow) {
	f := prev.next
	q.weight -= f.weight()
	if f == prev {
		q.tail = nil
	} else {
		prev.next = f.next
		if q.tail == f {
			q.tail = prev
		}
	}
	f.next = nil
	f.active = false
	f.deficit = 0
}

// remove removes f from the ring. The caller has counted its entries.
func (q *queue) remove(f *Flow) {
	f.waiting = [2]fifo{}
	prev := q.tail
	for prev.next != f {
		prev = prev.next
	}
	q.deactivate(prev)
}
