package pool

import "time"

// quantum is the cost in octets that a flow of weight 1 may spend in one round. It pays for
// sixteen small Calls, or for a part of a large Call, for which the flow saves over several
// rounds. A quantum of one small Call would be fairer. But then the Replies of a client would
// also arrive one at a time, and the bridge would make a system call for each: eight times as
// many system calls with 256 clients of 16 Calls.
const quantum = 64 << 10

// A queue schedules flows by deficit round robin. In each round a flow may spend its savings
// plus quantum octets times its weight. A flow without a waiting Call saves nothing. The caller
// of each method holds the pool's lock.
type queue struct {
	tail   *Flow // last flow of the ring; tail.next is the flow whose turn it is
	n      int   // entries
	weight int   // sum over the flows in the ring
	served int64 // total cost in octets dispatched for each unit of weight in the ring
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

// pop removes and returns the next entry in fair order. The queue must not be empty.
func (q *queue) pop() *Entry {
	for {
		f := q.tail.next
		l := f.nextFIFO()
		if n := l.head.cost(); f.deficit < n {
			// The turn of a flow is over when it cannot pay for its next Call, and it gets its
			// quantum when its next turn begins. A flow that is alone in the ring needs no
			// rounds.
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

// reweigh sets the weight of f to w. It lowers the deficit of f, so that f does not spend more
// in this turn than the new weight allows.
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

// expire removes the entries that were queued before t and returns them as a list.
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

// activate appends f to the ring unless f is already in it.
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

// remove removes f from the ring. The caller has already subtracted the entries of f from q.n.
func (q *queue) remove(f *Flow) {
	f.waiting = [2]fifo{}
	prev := q.tail
	for prev.next != f {
		prev = prev.next
	}
	q.deactivate(prev)
}
