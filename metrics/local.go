package metrics

import "sync/atomic"

// Local returns a Registry for one event loop. It makes the same series as r, but its counters
// and histograms are parts of the series, which only this loop should count in. The exported
// value of a series is the sum of its parts. Gauges and functions are those of r.
//
// When two loops add to one counter, its cache line moves from one processor to another with
// each Call, and a dozen counters lie in the path of a Call. A part is on a cache line that no
// other loop writes. With two loops this saved 2 % of the processor time of small Calls.
func (r *Registry) Local() *Registry {
	if r == nil {
		return nil
	}
	return &Registry{series: r.series, parts: &parts{
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

// parts are the counters and histograms of a registry that Local has returned. The mutex of the
// series guards them.
type parts struct {
	counters   map[*Counter]*Counter     // by the whole
	histograms map[*Histogram]*Histogram // by the whole
	free       []Counter                 // to be used next
}

// counter returns the part of c.
func (p *parts) counter(c *Counter) *Counter {
	part := p.counters[c]
	if part != nil {
		return part
	}
	if len(p.free) == 0 {
		const apart = cacheLines / 16 // a Counter has 16 octets
		p.free = make([]Counter, apart+partsBlock+apart)[apart : apart+partsBlock]
	}
	part, p.free = &p.free[0], p.free[1:]
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
	part = &Histogram{bounds: h.bounds, unit: h.unit, counts: make([]atomic.Uint64, apart+n+apart)[apart : apart+n]}
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
