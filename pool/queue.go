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

// largeCost is what a Call must cost to be worth a connection of its own.
const largeCost = 32 << 10

// cost is what e is charged.
func (e *Entry) cost() int { return max(e.Cost, leastCost) }

// An Entry is one Call's place in the pool, embedded in the Call. Owner, Flow and
// Cost are set before Submit.
type Entry struct {
	Owner any   // for Member and Owner to find the Call; not looked at here
	Flow  *Flow // the client
	Cost  int   // octets this Call moves, about: Call plus expected Reply

	next     *Entry
	seat     *Seat     // holds the credit, while dispatched
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
	head, tail *Entry
	deficit    int
	active     bool
	home       int   // 1 + the loop in whose queue it waits; 0: none yet
	next       *Flow // ring of active flows
	seat       *Seat // where its last small Call went
}

// queue is deficit round robin over flows: each time a flow comes round it may
// spend quantum more octets than before. A flow that has nothing waiting keeps
// nothing. All methods are called with the pool's lock held.
type queue struct {
	tail  *Flow // last flow of the ring; tail.next is the one being served
	n     int   // entries
	flows int   // in the ring
	had   int64 // octets of cost that each flow in the ring has had, on average, since ever
}

func (q *queue) push(e *Entry) {
	f := e.Flow
	e.next = nil
	if f.tail == nil {
		f.head = e
	} else {
		f.tail.next = e
	}
	f.tail = e
	q.n++
	q.activate(f)
}

func (q *queue) pushFront(e *Entry) {
	f := e.Flow
	e.next = f.head
	f.head = e
	if f.tail == nil {
		f.tail = e
	}
	q.n++
	q.activate(f)
}

func (q *queue) activate(f *Flow) {
	if f.active {
		return
	}
	f.active = true
	f.deficit = 0
	q.flows++
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
	q.flows--
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

// pop takes the next entry in fair order. q.n > 0.
func (q *queue) pop() *Entry {
	for {
		f := q.tail.next
		e := f.head
		if f.deficit < e.cost() {
			// A flow's turn is over when it cannot pay for its next Call. It is topped
			// up as its turn comes round; when it is alone no round is needed.
			if f == q.tail {
				f.deficit = e.cost()
			} else {
				f.deficit += quantum
				if f.deficit < e.cost() {
					q.tail = f
					continue
				}
			}
		}
		f.deficit -= e.cost()
		q.had += int64(e.cost() / q.flows)
		f.head = e.next
		e.next = nil
		q.n--
		switch {
		case f.head == nil:
			f.tail = nil
			q.deactivate(q.tail)
		case f.deficit < f.head.cost():
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
	list := f.head
	for e := list; e != nil; e = e.next {
		q.n--
	}
	f.head, f.tail = nil, nil
	prev := q.tail
	for prev.next != f {
		prev = prev.next
	}
	q.deactivate(prev)
	return list
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
	if q.tail == nil {
		return nil
	}
	var list *Entry
	flows := make([]*Flow, 0, 16)
	for f := q.tail.next; ; f = f.next {
		flows = append(flows, f)
		if f == q.tail {
			break
		}
	}
	for _, f := range flows {
		var old *Entry
		head := &f.head
		f.tail = nil
		for e := f.head; e != nil; {
			next := e.next
			if e.queuedAt.Before(t) {
				*head = next
				e.next = old
				old = e
				q.n--
			} else {
				head = &e.next
				f.tail = e
			}
			e = next
		}
		list = join(old, list)
		if f.head == nil {
			q.forget(f)
		}
	}
	return list
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
