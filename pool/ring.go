package pool

// A ring lets its members spend octets in turns: deficit round robin. In each round a member may
// spend its savings plus what it gains. The members are the hosts of a queue, or the flows of a
// host. Where nothing is spent, a ring is a list.
type ring[T any] struct{ first *turn[T] } // the member whose turn it is; nil if there is none

// A turn is a member's place in a ring.
type turn[T any] struct {
	of         *T       // the member
	next, prev *turn[T] // nil while the member is not in the ring
	deficit    int      // octets that the member may still spend in its turn; below 0, octets that it owes
}

// in reports whether t is in a ring.
func (t *turn[T]) in() bool { return t.next != nil }

// put puts t in the ring. If it resumes its turn and has savings, it keeps them and is the first.
// Otherwise it is the last and has none.
func (r *ring[T]) put(t *turn[T], resumes bool) {
	saved := t.deficit
	r.add(t)
	if resumes && saved > 0 {
		t.deficit, r.first = saved, t
	}
}

// add puts t at the end of the ring, without savings.
func (r *ring[T]) add(t *turn[T]) {
	t.deficit = 0
	if r.first == nil {
		r.first, t.next, t.prev = t, t, t
		return
	}
	t.next, t.prev = r.first, r.first.prev
	t.prev.next, t.next.prev = t, t
}

// head returns the member whose turn it is, or nil.
func (r *ring[T]) head() *T {
	if r.first == nil {
		return nil
	}
	return r.first.of
}

// remove takes t out of the ring.
func (r *ring[T]) remove(t *turn[T]) {
	if t.next == t {
		r.first = nil
	} else {
		t.prev.next, t.next.prev = t.next, t.prev
		if r.first == t {
			r.first = t.next
		}
	}
	t.next, t.prev = nil, nil
}

// pass ends the turn of t, if it is the turn of t.
func (r *ring[T]) pass(t *turn[T]) {
	if r.first == t {
		r.first = t.next
	}
}

// choose returns the member that spends next. cost is how many octets a member wants to spend,
// and gain how many it gets when its turn begins. A member that is alone needs no rounds. The
// ring must not be empty.
func (r *ring[T]) choose(cost, gain func(*T) int) *T {
	for {
		t := r.first
		n := cost(t.of)
		if t.deficit >= n {
			return t.of
		}
		if t.next == t {
			t.deficit = n
			return t.of
		}
		if t.deficit += gain(t.of); t.deficit >= n {
			return t.of
		}
		r.first = t.next
	}
}

// all yields the members in the order of their turns. The caller may remove the member that it
// was given.
func (r *ring[T]) all(yield func(*T) bool) {
	if r.first == nil {
		return
	}
	for t, last := r.first, r.first.prev; ; {
		next, end := t.next, t == last
		if !yield(t.of) || end {
			return
		}
		t = next
	}
}
