package metrics

import "sync/atomic"

// Local returns a Registry for one event loop. It makes the same series as r, but its counters
// and histograms are parts of the series, in which only the loop may count. What it counts is seen
// after Publish. The registry calls arrange, on the loop, when there is something to publish: once
// before each Publish. The exported value of a series is the sum of its parts. Gauges and
// functions are those of r.
//
// A dozen counters lie in the path of a Call. When two loops add to one counter, its cache line
// moves from one processor to another with each Call, and an atomic addition waits for all stores
// before it, even on a cache line of the loop's own. A loop publishes once for a pass with many
// Calls.
func (r *Registry) Local(arrange func()) *Registry {
	if r == nil {
		return nil
	}
	return &Registry{series: r.series, parts: &parts{
		arrange:    arrange,
		counters:   make(map[*Counter]*Counter),
		histograms: make(map[*Histogram]*Histogram),
	}}
}

const (
	// cacheLines is how many octets keep two variables off a cache line and off its neighbour,
	// which some processors fetch with it.
	cacheLines = 128
	// partsBlock is how many counters of one loop are allocated together.
	partsBlock = 64
)

// parts are the counters and histograms of a registry that Local has returned.
type parts struct {
	arrange func() // constant

	// Guarded by the mutex of the series.
	counters   map[*Counter]*Counter     // by the whole
	histograms map[*Histogram]*Histogram // by the whole
	free       []Counter                 // to be used next

	// The loop's: what has changed since Publish.
	countersChanged   []*Counter
	histogramsChanged []*Histogram
}

// arrangeOnce calls arrange if nothing has changed since Publish.
func (p *parts) arrangeOnce() {
	if len(p.countersChanged)+len(p.histogramsChanged) == 0 {
		p.arrange()
	}
}

// Publish makes visible what the loop of r has counted. The loop calls it, where Local has
// returned r.
func (r *Registry) Publish() {
	if r == nil {
		return
	}
	p := r.parts
	for _, c := range p.countersChanged {
		c.v.Add(c.pending)
		c.pending = 0
	}
	p.countersChanged = p.countersChanged[:0]
	for _, h := range p.histogramsChanged {
		for i, n := range h.pending {
			if n > 0 {
				h.counts[i].Add(n)
				h.pending[i] = 0
			}
		}
		h.changed = false
	}
	p.histogramsChanged = p.histogramsChanged[:0]
}

// counter returns the part of c.
func (p *parts) counter(c *Counter) *Counter {
	part := p.counters[c]
	if part != nil {
		return part
	}
	if len(p.free) == 0 {
		const apart = cacheLines / 32 // a Counter has 32 octets
		p.free = make([]Counter, apart+partsBlock+apart)[apart : apart+partsBlock]
	}
	part, p.free = &p.free[0], p.free[1:]
	part.loop = p
	p.counters[c] = part
	addPart(&c.parts, part)
	return part
}

// histogram returns the part of h.
func (p *parts) histogram(h *Histogram) *Histogram {
	part := p.histograms[h]
	if part != nil {
		return part
	}
	const apart = cacheLines / 8
	n := len(h.counts)
	part = &Histogram{
		bounds: h.bounds, unit: h.unit, counts: make([]atomic.Uint64, apart+n+apart)[apart : apart+n],
		loop: p, pending: make([]uint64, n),
	}
	p.histograms[h] = part
	addPart(&h.parts, part)
	return part
}

// addPart appends part to the list at all, which others may be reading.
func addPart[T any](all *atomic.Pointer[[]*T], part *T) {
	list := append([]*T(nil), loadParts(all)...)
	list = append(list, part)
	all.Store(&list)
}

func loadParts[T any](all *atomic.Pointer[[]*T]) []*T {
	if list := all.Load(); list != nil {
		return *list
	}
	return nil
}
