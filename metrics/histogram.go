package metrics

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Histograms
//
// Prometheus has two kinds of histograms, and a scrape in its binary format carries both. A classic one
// has the bounds of its definition. A native one has, in each power of two, as many buckets as its schema
// says, here four: each bound is 1.19 times the one before. So a quantile is known within a tenth, whatever
// the values are.
//
// A Histogram counts in cells. A cell is a native bucket, or a part of one that a bound of the classic
// histogram divides. So it counts a value once, for both.

// A Histogram counts observed values, such as nanoseconds or bytes.
type Histogram struct {
	cells  *cells
	counts []atomic.Uint64              // a counter for each cell, and the sum
	parts  atomic.Pointer[[]*Histogram] // those of the loops: Local
	recent *recentCalls                 // exemplars, nil in the part of a loop

	// Set in the part of a loop only.
	loop    *parts     // all parts of the loop
	pending []uint32   // counted since Publish, by cell; owned by the loop
	touched []uint16   // the cells of pending that are not 0; owned by the loop
	sum     uint64     // of the values in pending; owned by the loop
	sample  *exemplars // some Calls that were observed
}

func newHistogram(d *Definition) *Histogram {
	c := d.cells
	return &Histogram{cells: c, counts: make([]atomic.Uint64, len(c.native)+1), recent: &recentCalls{last: make([]Call, len(c.bounds)+1)}}
}

// newPart makes a part of h for a loop.
func (h *Histogram) newPart(p *parts) *Histogram {
	const apart = cacheLines / 8
	n := len(h.counts)
	return &Histogram{
		cells: h.cells, counts: make([]atomic.Uint64, apart+n+apart)[apart : apart+n],
		loop: p, pending: make([]uint32, n-1), touched: make([]uint16, 0, n-1), sample: newExemplars(len(h.cells.bounds) + 1),
	}
}

// Observe counts v in its bucket.
func (h *Histogram) Observe(v uint64) {
	if h == nil {
		return
	}
	cell := h.cells.of(v)
	if h.loop == nil {
		h.counts[cell].Add(1)
		h.counts[len(h.counts)-1].Add(v)
		return
	}
	if h.pending[cell] == 0 {
		h.touch(cell)
	}
	h.pending[cell]++
	h.sum += v
}

// ObserveCalls counts v n times, once for each of n Calls. The client has given the first of them the first
// XID, and the bridge has given it the second one, or 0. A scrape in the format of OpenMetrics, or in
// Prometheus' binary one, shows one recent Call of each bucket.
func (h *Histogram) ObserveCalls(v, n uint64, xid, upstreamXID uint32) {
	if h == nil || n == 0 {
		return
	}
	cell := h.cells.of(v)
	if h.loop == nil {
		h.counts[cell].Add(n)
		h.counts[len(h.counts)-1].Add(v * n)
		return
	}
	if h.pending[cell] == 0 {
		h.touch(cell)
		if bucket := h.cells.classic[cell]; h.sample.wanted.Load()>>bucket&1 != 0 {
			h.sample.keep(bucket, v, xid, upstreamXID)
		}
	}
	h.pending[cell] += uint32(n)
	h.sum += v * n
}

// touch notes that h has counted in a cell for the first time since Publish.
func (h *Histogram) touch(cell int) {
	if len(h.touched) == 0 {
		h.loop.arrangeOnce()
		h.loop.histogramsChanged = append(h.loop.histogramsChanged, h)
	}
	h.touched = append(h.touched, uint16(cell))
}

// publish adds what the loop has counted.
func (h *Histogram) publish() {
	for _, cell := range h.touched {
		h.counts[cell].Add(uint64(h.pending[cell]))
		h.pending[cell] = 0
	}
	h.counts[len(h.counts)-1].Add(h.sum)
	h.touched, h.sum = h.touched[:0], 0
}

// values returns the counts by cell, and the sum, with those of the parts.
func (h *Histogram) values() (counts []uint64, sum uint64) {
	all := make([]uint64, len(h.counts))
	for i := range h.counts {
		all[i] = h.counts[i].Load()
	}
	for _, part := range loadParts(&h.parts) {
		for i := range part.counts {
			all[i] += part.counts[i].Load()
		}
	}
	return all[:len(all)-1], all[len(all)-1]
}

// Buckets returns the upper bounds of the classic histogram, in the unit that is exported, and how many
// values each bucket has, and one bucket more for greater values.
func (h *Histogram) Buckets() (bounds []float64, counts []uint64) {
	if h == nil {
		return nil, nil
	}
	all, _ := h.values()
	for _, b := range h.cells.bounds {
		bounds = append(bounds, float64(b)/h.cells.unit)
	}
	return bounds, h.cells.classicCounts(all)
}

// schema is how many buckets a native histogram has in each power of two: 1<<schema.
const schema = 2

// margin is how many powers of two a native histogram has below the least classic bound and above the
// greatest one.
const margin = 6

// cells are how all histograms of one definition count. They are constant.
type cells struct {
	bounds []uint64 // of the classic histogram, ascending
	unit   float64  // exported value = observed value / unit

	// Native bucket 0 is the zero bucket. Bucket n, from 1, has the index low<<schema + n and the upper
	// bound 2^((low<<schema + n) / (1<<schema)). The last one has all larger values, too.
	low  int
	last int // the last native bucket

	native  []uint16 // of each cell, its native bucket
	classic []uint8  // of each cell, its classic bucket
	slots   [496]slot
}

// A slot has the values that agree in their length and in their first four bits: slotOf. It is narrower than
// a native bucket, so that at most one bound of either kind is in it.
type slot struct {
	first  int // the cell of its least value
	bounds [2]uint64
}

// slotOf returns the number of the slot of v.
func slotOf(v uint64) int {
	shift := bits.Len64(v|8) - 4
	return shift<<3 + int(v>>shift)
}

// of returns the cell of v.
func (c *cells) of(v uint64) int {
	s := &c.slots[slotOf(v)]
	_, a := bits.Sub64(s.bounds[0], v, 0) // 1 if v is above the bound
	_, b := bits.Sub64(s.bounds[1], v, 0)
	return s.first + int(a+b)
}

func newCells(bounds []uint64, unit float64) *cells {
	c := &cells{bounds: bounds, unit: unit}
	c.low = int(math.Floor(math.Log2(float64(bounds[0])/unit))) - margin
	c.last = (int(math.Ceil(math.Log2(float64(bounds[len(bounds)-1])/unit))) + margin - c.low) << schema
	// All bounds, of both kinds, divide the values into cells.
	type edge struct {
		bound           uint64
		native, classic int // 1 if it is such a bound
	}
	var edges []edge
	for n := range c.last {
		if b := math.Floor(math.Exp2(float64(c.low)+float64(n)/(1<<schema)) * unit); b >= 1 {
			edges = append(edges, edge{bound: uint64(b), native: 1})
		} else {
			edges = append(edges, edge{native: 1}) // 0 is below it, and 1 is not
		}
	}
	for i, b := range bounds {
		if i > 0 && float64(b) < float64(bounds[i-1])*1.2 {
			panic(fmt.Sprintf("BUG: metrics: bound %d is too near to the one before it", b))
		}
		edges = append(edges, edge{bound: b, classic: 1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.bound, b.bound) })
	uppers := []uint64{} // of each cell but the last
	native, classic := 0, 0
	for i, e := range edges {
		if i == 0 || e.bound != edges[i-1].bound {
			uppers = append(uppers, e.bound)
			c.native, c.classic = append(c.native, uint16(native)), append(c.classic, uint8(classic))
		}
		native += e.native
		classic += e.classic
	}
	c.native, c.classic = append(c.native, uint16(native)), append(c.classic, uint8(classic))
	// The least value of slot i.
	least := func(i int) uint64 {
		shift := max(i>>3-1, 0)
		return uint64(i-shift<<3) << shift
	}
	for i := range c.slots {
		s := &c.slots[i]
		s.first, _ = slices.BinarySearch(uppers, least(i))
		s.bounds = [2]uint64{math.MaxUint64, math.MaxUint64}
		for k := range s.bounds {
			if at := s.first + k; at < len(uppers) && (i+1 == len(c.slots) || uppers[at] < least(i+1)) {
				s.bounds[k] = uppers[at]
			}
		}
	}
	return c
}

// classicCounts adds up counts of cells by classic bucket.
func (c *cells) classicCounts(counts []uint64) []uint64 {
	all := make([]uint64, len(c.bounds)+1)
	for i, n := range counts {
		all[c.classic[i]] += n
	}
	return all
}

// A Call is an exemplar: one value that was observed, and the Call that it belongs to.
type Call struct {
	Value            uint64
	XID, UpstreamXID uint32
	At               time.Time // zero if there is no Call
}

// exemplars are the Calls that one loop keeps for the next scrape: the first one of each classic bucket since
// the last scrape. A slot belongs to the loop while its bit of wanted is 1, and else to those who scrape.
type exemplars struct {
	wanted atomic.Uint32 // a bit for each bucket
	slots  []Call
}

func newExemplars(buckets int) *exemplars {
	e := &exemplars{slots: make([]Call, min(buckets, 32))}
	e.wanted.Store(1<<len(e.slots) - 1)
	return e
}

// keep keeps a Call. On the loop, while the bucket's slot is wanted.
func (e *exemplars) keep(bucket uint8, v uint64, xid, upstreamXID uint32) {
	e.slots[bucket] = Call{Value: v, XID: xid, UpstreamXID: upstreamXID, At: time.Now()}
	e.wanted.And(^uint32(1 << bucket))
}

// recentCalls are the latest exemplars of a Histogram that were scraped, by classic bucket.
type recentCalls struct {
	mu   sync.Mutex // guards last, and the slots of parts that are not wanted; a leaf
	last []Call
}

// calls returns the latest exemplars by classic bucket.
func (h *Histogram) calls() []Call {
	r := h.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, part := range loadParts(&h.parts) {
		e := part.sample
		wanted := e.wanted.Load()
		for i := range e.slots {
			if wanted>>i&1 != 0 {
				continue
			}
			if e.slots[i].At.After(r.last[i].At) {
				r.last[i] = e.slots[i]
			}
			e.wanted.Or(1 << i)
		}
	}
	return append([]Call(nil), r.last...)
}
