//go:build ibverbs

package ibverbs

// A queue grows by doubling and never shrinks. It reuses its elements together with the memory that
// they own.
type queue[T any] struct {
	buf  []T // length a power of two
	head int
	n    int
}

// at returns the i-th oldest element, 0 <= i < n.
func (q *queue[T]) at(i int) *T { return &q.buf[(q.head+i)&(len(q.buf)-1)] }

// push adds an element and returns it with the contents it last had. The pointer is valid until the
// next push.
func (q *queue[T]) push() *T {
	if q.n == len(q.buf) {
		buf := make([]T, max(8, 2*len(q.buf)))
		for i := range q.n {
			buf[i] = *q.at(i)
		}
		q.buf, q.head = buf, 0
	}
	q.n++
	return q.at(q.n - 1)
}

// undo removes the element that was pushed last.
func (q *queue[T]) undo() { q.n-- }

// pop removes the oldest element.
func (q *queue[T]) pop() {
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
}
