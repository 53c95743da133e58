package pool

import "time"

// queues are the Calls that wait, a queue for each loop, and one for each seat with
// those that go by no other: sticky.go. Where a credit comes
// back on a loop, a Call of that loop's clients takes it: one of another loop's
// would cost both a cache miss for everything the Call touches. That is only a
// preference. Each queue knows how much each of its flows has had, and one that
// has fallen behind is served first, whichever loop has the credit, so that a
// client's share does not depend on how many others its loop has. All methods are
// called with the pool's lock held.
type queues struct {
	byLoop  []queue // by loop
	bySeat  []queue // by seat
	n       int     // Calls in all
	anySeat int     // those in by, which go by any seat
}

// maxLag is by how many octets for each flow a queue may fall behind others.
const maxLag = 4 * quantum

// of is the queue of f: that of the seat it is tied to, or that of the loop that used
// it first, its client's, with which it stays.
func (qs *queues) of(f *Flow, here int) *queue {
	if f.seatQueue > 0 {
		return &qs.bySeat[f.seatQueue-1]
	}
	if f.loopQueue == 0 {
		f.loopQueue = 1 + max(here, 0)%len(qs.byLoop)
	}
	return &qs.byLoop[f.loopQueue-1]
}

func (qs *queues) push(e *Entry, here int) {
	q := qs.enter(e, here)
	q.push(e)
}

func (qs *queues) pushFront(e *Entry, here int) {
	q := qs.enter(e, here)
	q.pushFront(e)
}

// enter counts e in. A queue that was empty has nothing to catch up with.
func (qs *queues) enter(e *Entry, here int) *queue {
	q := qs.of(e.Flow, here)
	if q.n == 0 {
		o := leastServed(leastServed(nil, qs.byLoop), qs.bySeat)
		if o != nil {
			q.served = max(q.served, o.served)
		}
	}
	qs.count(e.Flow, 1)
	return q
}

// count adds n to the Calls that wait in f's queue.
func (qs *queues) count(f *Flow, n int) {
	qs.n += n
	if f.seatQueue == 0 {
		qs.anySeat += n
	}
}

// leastServed is the queue whose flows have had least, of last and those of list that are
// not empty.
func leastServed(last *queue, list []queue) *queue {
	for i := range list {
		if q := &list[i]; q.n > 0 && (last == nil || q.served < last.served) {
			last = q
		}
	}
	return last
}

// blocks reports whether anything waits that is to go before what f has now.
func (qs *queues) blocks(f *Flow) bool {
	return qs.anySeat > 0 || f.seatQueue > 0 && qs.bySeat[f.seatQueue-1].n > 0
}

// waitsFor reports whether anything waitsFor that may go by seat.
func (qs *queues) waitsFor(seat int) bool { return qs.anySeat > 0 || qs.bySeat[seat].n > 0 }

// pop takes the next entry for loop here that may go by seat. There is one.
func (qs *queues) pop(here, seat int) *Entry {
	q := &qs.byLoop[max(here, 0)%len(qs.byLoop)]
	if t := &qs.bySeat[seat]; t.n > 0 && (q.n == 0 || t.served <= q.served) {
		q = t
	}
	if last := leastServed(nil, qs.byLoop); q.n == 0 || last != nil && last.served+maxLag < q.served {
		q = last
	}
	e := q.pop()
	qs.count(e.Flow, -1)
	return e
}

func (qs *queues) reweigh(f *Flow, w int) {
	if !f.active {
		f.Weight = w
		return
	}
	qs.of(f, Elsewhere).reweigh(f, w)
}

func (qs *queues) forget(f *Flow) *Entry {
	if !f.active {
		return nil
	}
	list := qs.of(f, Elsewhere).forget(f)
	for e := list; e != nil; e = e.next {
		qs.count(f, -1)
	}
	return list
}

func (qs *queues) drain() *Entry {
	return qs.each((*queue).drain)
}

func (qs *queues) expire(t time.Time) *Entry {
	return qs.each(func(q *queue) *Entry { return q.expire(t) })
}

// each takes out of every queue what take takes out of it.
func (qs *queues) each(take func(*queue) *Entry) (list *Entry) {
	for q := range qs.all {
		out := take(q)
		for e := out; e != nil; e = e.next {
			qs.count(e.Flow, -1)
		}
		list = join(out, list)
	}
	return list
}

// all is every queue. iter.Seq.
func (qs *queues) all(yield func(*queue) bool) {
	for _, list := range [][]queue{qs.byLoop, qs.bySeat} {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}
