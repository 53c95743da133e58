package sizing

// An entry is a slot's Call. It counts only while the slot has the same gen.
type entry struct {
	id  int32
	gen uint32
}

// A fifo is a queue of entries.
type fifo struct {
	all   []entry
	first int
}

func (q *fifo) len() int     { return len(q.all) - q.first }
func (q *fifo) push(e entry) { q.all = append(q.all, e) }

func (q *fifo) pop() entry {
	e := q.all[q.first]
	q.first++
	if q.first == len(q.all) {
		q.all, q.first = q.all[:0], 0
	} else if q.first > 64 && q.first > len(q.all)/2 {
		n := copy(q.all, q.all[q.first:])
		q.all, q.first = q.all[:n], 0
	}
	return e
}

// before is the order of events. At the same time the order is that of kinds and numbers, so that it is always the same.
func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	if e.kind != o.kind {
		return e.kind < o.kind
	}
	return e.id < o.id
}

func (s *simulation) push(e event) {
	h := append(s.heap, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	s.heap = h
}

func (s *simulation) pop() event {
	h := s.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	s.heap = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		least, end := 4*i+1, min(4*i+5, len(h))
		if least >= len(h) {
			break
		}
		for j := least + 1; j < end; j++ {
			if h[j].before(&h[least]) {
				least = j
			}
		}
		if !h[least].before(&last) {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = last
	return top
}
