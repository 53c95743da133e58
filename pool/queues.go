package pool

import "time"

// queues are the Calls that wait, a queue for each loop. Where a credit comes
// back on a loop, a Call of that loop's clients takes it: one of another loop's
// would cost both a cache miss for everything the Call touches. That is only a
// preference. Each queue knows how much each of its flows has had, and one that
// has fallen behind is served first, whichever loop has the credit, so that a
// client's share does not depend on how many others its loop has. All methods are
// called with the pool's lock held.
type queues struct {
	by []queue // by loop
	n  int     // Calls in all
}

// lag is by how many octets for each flow a queue may fall behind others.
const lag = 4 * quantum

// of is the queue of f. A flow stays with the loop that used it first, its
// client's.
func (qs *queues) of(f *Flow, here int) *queue {
	if f.home == 0 {
		f.home = 1 + max(here, 0)%len(qs.by)
	}
	return &qs.by[f.home-1]
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
		if o := qs.last(); o != nil {
			q.had = max(q.had, o.had)
		}
	}
	qs.n++
	return q
}

// last is the queue whose flows have had least, of those that are not empty.
func (qs *queues) last() *queue {
	var last *queue
	for i := range qs.by {
		if q := &qs.by[i]; q.n > 0 && (last == nil || q.had < last.had) {
			last = q
		}
	}
	return last
}

// pop takes the next entry for loop here. qs.n > 0.
func (qs *queues) pop(here int) *Entry {
	q := &qs.by[max(here, 0)%len(qs.by)]
	if last := qs.last(); q.n == 0 || last.had+lag < q.had {
		q = last
	}
	qs.n--
	return q.pop()
}

func (qs *queues) reweigh(f *Flow, w int) {
	if f.home == 0 {
		f.Weight = w
		return
	}
	qs.by[f.home-1].reweigh(f, w)
}

func (qs *queues) forget(f *Flow) *Entry {
	if f.home == 0 {
		return nil
	}
	return qs.counted(&qs.by[f.home-1], func(q *queue) *Entry { return q.forget(f) })
}

func (qs *queues) drain() *Entry {
	return qs.each((*queue).drain)
}

func (qs *queues) expire(t time.Time) *Entry {
	return qs.each(func(q *queue) *Entry { return q.expire(t) })
}

func (qs *queues) each(take func(*queue) *Entry) (list *Entry) {
	for i := range qs.by {
		list = join(qs.counted(&qs.by[i], take), list)
	}
	return list
}

// counted keeps n right while take takes entries out of q.
func (qs *queues) counted(q *queue, take func(*queue) *Entry) *Entry {
	was := q.n
	list := take(q)
	qs.n -= was - q.n
	return list
}
