package iwarp

// A ring is a queue that grows by doubling and never shrinks. It reuses its elements
// together with the memory that they own.
type ring[T any] struct {
	buf  []T // length a power of two
	head int
	n    int
}

func (r *ring[T]) len() int { return r.n }

// at returns the i-th oldest element, 0 <= i < len().
func (r *ring[T]) at(i int) *T { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

// push adds an element and returns it with the contents it last had. The pointer is
// valid until the next push.
func (r *ring[T]) push() *T {
	if r.n == len(r.buf) {
		buf := make([]T, max(8, 2*len(r.buf)))
		for i := range r.n {
			buf[i] = *r.at(i)
		}
		r.buf, r.head = buf, 0
	}
	r.n++
	return r.at(r.n - 1)
}

// pop removes the oldest element. The caller clears the references that the element must not
// retain.
func (r *ring[T]) pop() {
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
}
