package names

import "container/heap"

// A sketch counts the keys that come most often, by Space-Saving: A. Metwally, D. Agrawal, A. El Abbadi, "Efficient
// Computation of Frequent and Top-k Elements in Data Streams", 2005. It has a bounded number of counters. A new key takes
// over the lowest counter and its count, which is then how much too high the new one's may be.
type sketch[K comparable] struct {
	most     int
	counters map[K]*counter[K]
	lowest   heaped[K]
}

// A tally is what is counted of a key.
type tally struct {
	count         float64 // Calls
	over          float64 // by how much count may be too high
	variance      float64 // of count, because only a sample is counted
	read, written float64 // octets
	seconds       float64 // that its Calls took, without those that over stands for
}

func (t *tally) add(o *tally) {
	t.count += o.count
	t.over += o.over
	t.variance += o.variance
	t.read += o.read
	t.written += o.written
	t.seconds += o.seconds
}

type counter[K comparable] struct {
	key   K
	order float64 // in the heap: what count was when the counter was moved last, or less
	tally
}

func newSketch[K comparable](most int) *sketch[K] {
	return &sketch[K]{most: most, counters: make(map[K]*counter[K])}
}

// add counts what one Call adds.
func (s *sketch[K]) add(key K, u *tally) {
	c := s.counters[key]
	switch {
	case c != nil:
	case len(s.lowest) < s.most:
		c = &counter[K]{key: key}
		s.counters[key] = c
		heap.Push(&s.lowest, c)
	default:
		c = s.least()
		delete(s.counters, c.key)
		c.key, c.tally = key, tally{count: c.count, over: c.count}
		s.counters[key] = c
	}
	c.tally.add(u)
}

// least returns a counter with the lowest count. Only here counters are moved: counts do nothing but grow.
func (s *sketch[K]) least() *counter[K] {
	for {
		c := s.lowest[0]
		if c.order == c.count {
			return c
		}
		c.order = c.count
		heap.Fix(&s.lowest, 0)
	}
}

// missing returns the most that a key without a counter can have.
func (s *sketch[K]) missing() float64 {
	if len(s.lowest) < s.most {
		return 0
	}
	return s.least().count
}

// heaped is a heap.Interface: the counter with the lowest order is the first.
type heaped[K comparable] []*counter[K]

func (h heaped[K]) Len() int           { return len(h) }
func (h heaped[K]) Less(i, j int) bool { return h[i].order < h[j].order }
func (h heaped[K]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heaped[K]) Push(x any)        { *h = append(*h, x.(*counter[K])) }
func (h *heaped[K]) Pop() any          { panic("BUG: names: a counter never ends") }
