// Package drr has members take turns by deficit round robin. It knows neither Calls nor clients.
package drr

// A Ring lets its members spend octets in turns. In each round a member may spend its savings plus
// what it gains. Where nothing is spent, a ring is a list. The zero value is an empty ring. It is not
// safe for concurrent use.
type Ring[T any] struct{ first *Turn[T] } // the member whose turn it is; nil if there is none

// A Turn is a member's place in a ring. A member of several rings has one for each.
type Turn[T any] struct {
	Of      *T  // the member
	Deficit int // octets that the member may still spend in its turn; below 0, octets that it owes

	next, prev *Turn[T] // nil while the member is not in the ring
}

// Empty reports whether the ring has no members.
func (r *Ring[T]) Empty() bool { return r.first == nil }

// In reports whether t is in a ring.
func (t *Turn[T]) In() bool { return t.next != nil }

// Put puts t in the ring. If it resumes its turn and has savings, it keeps them and is the first.
// Otherwise it is the last and has none.
func (r *Ring[T]) Put(t *Turn[T], resumes bool) {
	saved := t.Deficit
	r.Add(t)
	if resumes && saved > 0 {
		t.Deficit, r.first = saved, t
	}
}

// Add puts t at the end of the ring, without savings.
func (r *Ring[T]) Add(t *Turn[T]) {
	t.Deficit = 0
	if r.first == nil {
		r.first, t.next, t.prev = t, t, t
		return
	}
	t.next, t.prev = r.first, r.first.prev
	t.prev.next, t.next.prev = t, t
}

// Head returns the member whose turn it is, or nil.
func (r *Ring[T]) Head() *T {
	if r.first == nil {
		return nil
	}
	return r.first.Of
}

// Remove takes t out of the ring.
func (r *Ring[T]) Remove(t *Turn[T]) {
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

// Pass ends the turn of t, if it is the turn of t.
func (r *Ring[T]) Pass(t *Turn[T]) {
	if r.first == t {
		r.first = t.next
	}
}

// Choose returns the member that spends next. cost is how many octets a member wants to spend,
// and gain how many it gets when its turn begins. A member that is alone needs no rounds. The
// ring must not be empty.
func (r *Ring[T]) Choose(cost, gain func(*T) int) *T {
	for {
		t := r.first
		n := cost(t.Of)
		if t.Deficit >= n {
			return t.Of
		}
		if t.next == t {
			t.Deficit = n
			return t.Of
		}
		if t.Deficit += gain(t.Of); t.Deficit >= n {
			return t.Of
		}
		r.first = t.next
	}
}

// All yields the members in the order of their turns. The caller may remove the member that it
// was given.
func (r *Ring[T]) All(yield func(*T) bool) {
	if r.first == nil {
		return
	}
	for t, last := r.first, r.first.prev; ; {
		next, end := t.next, t == last
		if !yield(t.Of) || end {
			return
		}
		t = next
	}
}
