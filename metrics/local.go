package metrics

import "sync/atomic"

// Local returns a Registry for one event loop. It makes the same series as r, but its counters
// and histograms are parts of the series, and only the loop may count in them. The exported value of
// a series is the sum of its parts. It contains what the loop has counted until its last Publish.
// At the first count after a Publish, the registry calls arrange, on the loop, so that the loop
// publishes again. Gauges and functions are those of r.
//
// A Call counts in a dozen counters. When two loops add to one counter, its cache line moves from
// one processor to another with each Call. And a processor that adds atomically waits for all its
// earlier stores, even if no other processor uses the cache line. So a loop counts in plain
// variables, and adds them to its parts once in a pass, which has many Calls.
func (r *Registry) Local(arrange func()) *Registry {
	if r == nil {
		return nil
	}
	p := &parts{
		arrange:    arrange,
		counters:   make(map[*Counter]*Counter),
		histograms: make(map[*Histogram]*Histogram),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.locals = append(r.locals, p)
	return &Registry{series: r.series, parts: p}
}

const (
	// cacheLines is how many octets apart two variables are on different pairs of cache lines.
	// Some processors fetch both lines of a pair.
	cacheLines = 128
	// partsBlock is how many counters of one loop are allocated together.
	partsBlock = 64
)

// parts are the counters and histograms of one loop, in a registry that Local has returned.
type parts struct {
	arrange func() // constant

	// Guarded by the mutex of the series.
	counters   map[*Counter]*Counter     // by the counter that they are parts of
	histograms map[*Histogram]*Histogram // by the histogram that they are parts of
	free       []Counter                 // not used yet

	// Owned by the loop. These have changed since Publish.
	countersChanged   []*Counter
	histogramsChanged []*Histogram
}

// arrangeOnce calls arrange if nothing has changed since Publish.
func (p *parts) arrangeOnce() {
	if len(p.countersChanged)+len(p.histogramsChanged) == 0 {
		p.arrange()
	}
}

// Publish makes the counts of a loop visible. Local has returned r, and the loop calls Publish.
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
		h.publish()
	}
	p.histogramsChanged = p.histogramsChanged[:0]
}

// counter returns the loop's part of c, and makes it first if there is none. The mutex of the
// series is held.
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

// histogram does what counter does, for h.
func (p *parts) histogram(h *Histogram) *Histogram {
	part := p.histograms[h]
	if part != nil {
		return part
	}
	part = h.newPart(p)
	p.histograms[h] = part
	addPart(&h.parts, part)
	return part
}

// forget drops the loop's part of a series. The mutex of the series is held.
func (p *parts) forget(series any) {
	switch s := series.(type) {
	case *Counter:
		delete(p.counters, s)
	case *Histogram:
		delete(p.histograms, s)
	}
}

// addPart appends part to the list at all. It copies the list, because others may be reading it.
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
