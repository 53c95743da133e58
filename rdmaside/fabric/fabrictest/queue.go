package fabrictest

// A queue is first in, first out. It reuses its slots together with the memory that they
// own.
type queue[T any] struct {
	slots []T
	next  int
}

func (q *queue[T]) len() int { return len(q.slots) - q.next }

func (q *queue[T]) first() *T { return &q.slots[q.next] }

// add appends a slot and returns it. It holds an old T or a zero one.
func (q *queue[T]) add() *T {
	if q.next > 0 && len(q.slots) == cap(q.slots) {
		// Swap rather than copy, so that old slots stay distinct.
		n := q.len()
		for i := range n {
			q.slots[i], q.slots[q.next+i] = q.slots[q.next+i], q.slots[i]
		}
		q.slots, q.next = q.slots[:n], 0
	}
	if len(q.slots) < cap(q.slots) {
		q.slots = q.slots[:len(q.slots)+1]
	} else {
		var zero T
		q.slots = append(q.slots, zero)
	}
	return &q.slots[len(q.slots)-1]
}

func (q *queue[T]) drop() {
	q.next++
	if q.next == len(q.slots) {
		q.slots, q.next = q.slots[:0], 0
	}
}

// length is the sum of the lengths of parts.
func length(parts [][]byte) (n int) {
	for _, p := range parts {
		n += len(p)
	}
	return n
}

// gather copies parts to dst until dst is full.
func gather(dst []byte, parts [][]byte) {
	for _, p := range parts {
		dst = dst[copy(dst, p):]
	}
}
