package regmem

import "math/bits"

// A runs allocates runs of pages. pool.mu guards it.
//
// Each extent has a bitmap of its pages. Its field longest is an upper bound on the length of
// its longest free run. A search that finds only shorter runs lowers the bound, and put raises
// it. A full extent thus costs a search one comparison.
type runs struct {
	first   int // number of the first page
	total   int // pages
	free    int // pages that are not in a slab
	touched int // pages that were in a slab and have not been discarded since
	longest int // length of the longest run in pages when all pages are free
	base    int // number of the first extent
	extent  []extent
}

type extent struct {
	end     int                         // pages from here on are outside the range
	free    int                         // pages
	longest int                         // upper bound on the pages of a free run
	used    [pagesPerExtent / 64]uint64 // a bit for each page that is in a slab or outside the range
	dirty   [pagesPerExtent / 64]uint64 // a bit for each page that was in a slab and has not been discarded since
}

// init makes r manage the given number of pages from first on.
func (r *runs) init(first, pages int) {
	*r = runs{first: first, total: pages, free: pages, base: first / pagesPerExtent}
	r.extent = make([]extent, (first+pages-1)/pagesPerExtent-r.base+1)
	for i := range r.extent {
		e := &r.extent[i]
		at := (r.base + i) * pagesPerExtent
		start := max(first-at, 0)
		e.end = min(first+pages-at, pagesPerExtent)
		e.free = e.end - start
		e.longest = e.free
		r.longest = max(r.longest, e.free)
		setBits(e.used[:], 0, start)
		setBits(e.used[:], e.end, pagesPerExtent-e.end)
	}
}

// take allocates n pages, from the high end of the range if high is set.
func (r *runs) take(n int, high bool) (page int, ok bool) {
	if n > r.free {
		return 0, false
	}
	for k := range r.extent {
		i := k
		if high {
			i = len(r.extent) - 1 - k
		}
		e := &r.extent[i]
		if e.longest < n {
			continue
		}
		if page, ok := e.find(n, high); ok {
			setBits(e.used[:], page, n)
			r.touched += setBits(e.dirty[:], page, n)
			e.free -= n
			e.longest = min(e.longest, e.free)
			r.free -= n
			return (r.base+i)*pagesPerExtent + page, true
		}
	}
	return 0, false
}

// fits reports whether take would find n pages.
func (r *runs) fits(n int) bool {
	if n > r.free {
		return false
	}
	for i := range r.extent {
		if e := &r.extent[i]; e.longest >= n {
			if _, ok := e.find(n, false); ok {
				return true
			}
		}
	}
	return false
}

// put frees n pages.
func (r *runs) put(page, n int) {
	e := &r.extent[page/pagesPerExtent-r.base]
	clearBits(e.used[:], page%pagesPerExtent, n)
	e.free += n
	e.longest = e.free
	r.free += n
}

// find looks for n free pages in the first run that is long enough, or in the last such run if
// high is set. If no run is long enough, find sets longest to the exact length of the longest
// run.
func (e *extent) find(n int, high bool) (page int, ok bool) {
	longest := 0
	if high {
		for end := e.end; end > 0; {
			end = lastClear(e.used[:], end)
			start := lastSet(e.used[:], end)
			if end-start >= n {
				return end - n, true
			}
			longest = max(longest, end-start)
			end = start
		}
	} else {
		for start := 0; start < e.end; {
			start = firstClear(e.used[:], start, e.end)
			end := firstSet(e.used[:], start, e.end)
			if end-start >= n {
				return start, true
			}
			longest = max(longest, end-start)
			start = end
		}
	}
	e.longest = longest
	return 0, false
}

// discard calls f for every run of pages that are free and dirty. It marks the pages as clean
// if f returns true.
func (r *runs) discard(f func(page, pages int) bool) {
	for i := range r.extent {
		e := &r.extent[i]
		var want [pagesPerExtent / 64]uint64
		for w := range want {
			want[w] = e.dirty[w] &^ e.used[w]
		}
		for start := 0; ; {
			start = firstSet(want[:], start, e.end)
			if start == e.end {
				break
			}
			end := firstClear(want[:], start, e.end)
			if f((r.base+i)*pagesPerExtent+start, end-start) {
				clearBits(e.dirty[:], start, end-start)
				r.touched -= end - start
			}
			start = end
		}
	}
}

// setBits sets n bits from i on and returns how many were clear.
func setBits(b []uint64, i, n int) (changed int) {
	for n > 0 {
		w, m, k := mask(i, n)
		changed += bits.OnesCount64(m &^ b[w])
		b[w] |= m
		i, n = i+k, n-k
	}
	return changed
}

// clearBits clears n bits from i on.
func clearBits(b []uint64, i, n int) {
	for n > 0 {
		w, m, k := mask(i, n)
		b[w] &^= m
		i, n = i+k, n-k
	}
}

// mask selects the first part of the n bits that begin at bit i: the k bits that lie in one
// word. It returns the index of that word, their mask m, and k.
func mask(i, n int) (word int, m uint64, k int) {
	k = min(64-i%64, n)
	return i / 64, ^uint64(0) >> (64 - k) << (i % 64), k
}

// firstSet returns the first set bit in [i, end), or end.
func firstSet(b []uint64, i, end int) int {
	for i < end {
		if w := b[i/64] >> (i % 64); w != 0 {
			return min(i+bits.TrailingZeros64(w), end)
		}
		i = (i/64 + 1) * 64
	}
	return end
}

// firstClear returns the first clear bit in [i, end), or end.
func firstClear(b []uint64, i, end int) int {
	for i < end {
		if w := ^b[i/64] >> (i % 64); w != 0 {
			return min(i+bits.TrailingZeros64(w), end)
		}
		i = (i/64 + 1) * 64
	}
	return end
}

// lastClear returns one past the last clear bit in [0, end), or 0.
func lastClear(b []uint64, end int) int {
	for end > 0 {
		i := end - 1
		if w := ^b[i/64] << (63 - i%64); w != 0 {
			return end - bits.LeadingZeros64(w)
		}
		end = i / 64 * 64
	}
	return 0
}

// lastSet returns one past the last set bit in [0, end), or 0.
func lastSet(b []uint64, end int) int {
	for end > 0 {
		i := end - 1
		if w := b[i/64] << (63 - i%64); w != 0 {
			return end - bits.LeadingZeros64(w)
		}
		end = i / 64 * 64
	}
	return 0
}
