package pool

import "time"

// quantum is what a flow may send in one round, in octets of cost, and leastCost
// what the smallest Call costs: in a round every flow sends up to sixteen small
// Calls, or saves for a large one. One at a time would be fairer still, but then
// the Replies of a client come one at a time too, and each costs a system call:
// with 256 clients of 16 Calls, eight times as many.
const (
	quantum   = 64 << 10
	leastCost = 4 << 10
)

// largeCost is what a Call must cost to be worth a connection of its own. Those
// that cost less are small.
const largeCost = 32 << 10

// inARow is how many small Calls of a flow may overtake a large one of its own.
const inARow = 16

// cost is what e is charged.
func (e *Entry) cost() int { return max(e.Cost, leastCost) }

// large reports whether e is no small Call.
func (e *Entry) large() bool { return e.Cost >= largeCost }

// An Entry is one Call's place in the pool, embedded in the Call. Owner, Flow and
// Cost are set before Submit.
type Entry struct {
	Owner any   // for Member and Owner to find the Call; not looked at here
	Flow  *Flow // the client
	Cost  int   // octets this Call moves, about: Call plus expected Reply

	next     *Entry
	seat     *Seat     // holds the credit, while dispatched
	asLarge  bool      // counted as large by seat
	counted  bool      // counted by the slow start
	queuedAt time.Time // first, since Sent; zero when it has not waited
	refused  uint64    // seats that Steer came from, since Sent
}

// Sent ends e's waiting: it is on its way. If it is queued again, waiting begins
// anew.
func (e *Entry) Sent() { e.queuedAt, e.refused = time.Time{}, 0 }

// Seat is where e was dispatched, or nil.
func (e *Entry) Seat() *Seat { return e.seat }

// A Flow is one client's share of the queue. The zero value is ready to use.
type Flow struct {
	// Weight is how many times as much as a flow of weight 1 it gets while both wait;
	// 0 is 1. It is set before the first Submit, and then by Pool.Reweigh.
	Weight int
	// Sticky has its Calls go by one connection of several, always the same, which
	// Place tells: sticky.go. Both are set before the first Submit.
	Sticky bool
	Hash   uint32

	waiting    [2]fifo // small Calls, and large ones
	smallInRow int     // small Calls since the last large one, while one waits
	deficit    int
	active     bool
	loopQueue  int   // 1 + the loop in whose queue it waits; 0: none yet
	seatQueue  int   // 1 + the seat in whose queue it waits instead; 0: none
	next       *Flow // ring of active flows
	seat       *Seat // where its last small Call went
}

// A fifo is Calls of a flow, in the order they are to go.
type fifo struct{ head, tail *Entry }

func (l *fifo) push(e *Entry) {
	e.next = nil
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.next = e
	}
	l.tail = e
}

func (l *fifo) pushFront(e *Entry) {
	e.next = l.head
	l.head = e
	if l.tail == nil {
		l.tail = e
	}
}

func (l *fifo) pop() *Entry {
	e := l.head
	l.head = e.next
	if l.head == nil {
		l.tail = nil
	}
	e.next = nil
	return e
}

// fifoOf is where e waits.
func (f *Flow) fifoOf(e *Entry) *fifo {
	if e.large() {
		return &f.waiting[1]
	}
	return &f.waiting[0]
}

// nextFIFO is the line whose first Call goes next: a client's small Calls do not wait
// behind its own megabytes, though sixteen in a row let a large one through.
func (f *Flow) nextFIFO() *fifo {
	if f.waiting[0].head == nil || f.waiting[1].head != nil && f.smallInRow >= inARow {
		return &f.waiting[1]
	}
	return &f.waiting[0]
}

func (f *Flow) empty() bool { return f.waiting[0].head == nil && f.waiting[1].head == nil }

// weight is what f counts for.
func (f *Flow) weight() int { return max(1, f.Weight) }

// queue is deficit round robin over flows: each time a flow comes round it may
// spend quantum more octets than before, times its weight. A flow that has nothing
// waiting keeps nothing. All methods are called with the pool's lock held.
type queue struct {
	tail   *Flow // last flow of the ring; tail.next is the one being served
	n      int   // entries
	weight int   // of the flows in the ring
	served int64 // octets of cost that each flow in the ring has had for each unit of weight, on average, since ever
}

func (q *queue) push(e *Entry) {
	e.Flow.fifoOf(e).push(e)
	q.n++
	q.activate(e.Flow)
}

func (q *queue) pushFront(e *Entry) {
	e.Flow.fifoOf(e).pushFront(e)
	q.n++
	q.activate(e.Flow)
}

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

// reweigh makes w the weight of f. Of what f may still spend in this round it keeps no
// more than it would have had.
func (q *queue) reweigh(f *Flow, w int) {
	was := f.weight()
	f.Weight = w
	if f.active {
		q.weight += f.weight() - was
		f.deficit = min(f.deficit, max(quantum*f.weight(), f.nextFIFO().head.cost()))
	}
}

// pop takes the next entry in fair order. q.n > 0.
func (q *queue) pop() *Entry {
	for {
		f := q.tail.next
		l := f.nextFIFO()
		if n := l.head.cost(); f.deficit < n {
			// A flow's turn is over when it cannot pay for its next Call. It is topped
			// up as its turn comes round; when it is alone no round is needed.
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
			q.tail = f // next flow's turn
		}
		return e
	}
}

// forget empties f and returns its entries, linked by next.
func (q *queue) forget(f *Flow) *Entry {
	if !f.active {
		return nil
	}
	list := join(f.waiting[0].head, f.waiting[1].head)
	for e := list; e != nil; e = e.next {
		q.n--
	}
	q.remove(f)
	return list
}

// remove takes f, whose entries are accounted for, out of the ring.
func (q *queue) remove(f *Flow) {
	f.waiting = [2]fifo{}
	prev := q.tail
	for prev.next != f {
		prev = prev.next
	}
	q.deactivate(prev)
}

// flows are those that wait in q, in the order of their turns.
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

// drain empties the queue and returns all entries, linked by next.
func (q *queue) drain() *Entry {
	var list *Entry
	for q.tail != nil {
		list = join(q.forget(q.tail.next), list)
	}
	return list
}

// expire takes out the entries that were queued before t.
func (q *queue) expire(t time.Time) *Entry {
	var list *Entry
	for _, f := range q.flows() {
		for i := range f.waiting {
			old := f.waiting[i].expire(t)
			for e := old; e != nil; e = e.next {
				q.n--
			}
			list = join(old, list)
		}
		if f.empty() {
			q.remove(f)
		}
	}
	return list
}

// expire takes out the entries that were queued before t.
func (l *fifo) expire(t time.Time) (old *Entry) {
	head := &l.head
	l.tail = nil
	for e := l.head; e != nil; {
		next := e.next
		if e.queuedAt.Before(t) {
			*head = next
			e.next = old
			old = e
		} else {
			head = &e.next
			l.tail = e
		}
		e = next
	}
	return old
}

// join appends list b to list a.
func join(a, b *Entry) *Entry {
	if a == nil {
		return b
	}
	e := a
	for e.next != nil {
		e = e.next
	}
	e.next = b
	return a
}
