package regmem

import (
	"math/rand/v2"
	"testing"
)

// The searches for bits agree with searches of a slice of bools.
func TestBits(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	const n = 4 * 64
	for range 2000 {
		b := make([]uint64, n/64)
		var plain [n]bool
		for range rnd.IntN(8) {
			i := rnd.IntN(n)
			k := 1 + rnd.IntN(n-i)
			set := rnd.IntN(2) == 0
			changed := 0
			for j := i; j < i+k; j++ {
				if set && !plain[j] {
					changed++
				}
				plain[j] = set
			}
			if !set {
				clearBits(b, i, k)
			} else if got := setBits(b, i, k); got != changed {
				t.Fatalf("setBits(%d, %d) changed %d, want %d", i, k, got, changed)
			}
		}
		for i := range n {
			if plain[i] != (b[i/64]>>(i%64)&1 == 1) {
				t.Fatalf("bit %d", i)
			}
		}
		start := rnd.IntN(n)
		end := start + rnd.IntN(n-start+1)
		up := func(want bool) int {
			for i := start; i < end; i++ {
				if plain[i] == want {
					return i
				}
			}
			return end
		}
		down := func(want bool) int {
			for i := end - 1; i >= 0; i-- {
				if plain[i] == want {
					return i + 1
				}
			}
			return 0
		}
		if got := firstSet(b, start, end); got != up(true) {
			t.Fatalf("firstSet = %d, want %d", got, up(true))
		}
		if got := firstClear(b, start, end); got != up(false) {
			t.Fatalf("firstClear = %d, want %d", got, up(false))
		}
		if got := lastSet(b, end); got != down(true) {
			t.Fatalf("lastSet = %d, want %d", got, down(true))
		}
		if got := lastClear(b, end); got != down(false) {
			t.Fatalf("lastClear = %d, want %d", got, down(false))
		}
	}
}

// A pageMap has the owner of each page, by the id of its run; 0 is free. It is the slow
// model of runs.
type pageMap struct {
	first int
	owner []int
}

// hasRun reports whether n free pages in a row are in one extent.
func (m *pageMap) hasRun(n int) bool {
	run := 0
	for i := m.first; i < len(m.owner); i++ {
		if i%pagesPerExtent == 0 {
			run = 0
		}
		if run++; m.owner[i] != 0 {
			run = 0
		}
		if run >= n {
			return true
		}
	}
	return false
}

// take gives n pages from page on to id, after checking that runs may allocate them.
func (m *pageMap) take(t *testing.T, page, n, id int) {
	t.Helper()
	if page < m.first || page+n > len(m.owner) {
		t.Fatalf("run of %d pages at %d is outside the range", n, page)
	}
	if page/pagesPerExtent != (page+n-1)/pagesPerExtent {
		t.Fatalf("run of %d pages at %d crosses an extent", n, page)
	}
	for i := page; i < page+n; i++ {
		if m.owner[i] != 0 {
			t.Fatalf("page %d allocated twice", i)
		}
		m.owner[i] = id
	}
}

func (m *pageMap) put(page, n int) { clear(m.owner[page : page+n]) }

// Runs are disjoint, within one extent, and found whenever there is one.
func TestRuns(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	const first, pages = pagesPerExtent + 4000, 2*pagesPerExtent + 100
	var r runs
	r.init(first, pages)
	model := &pageMap{first: first, owner: make([]int, first+pages)}
	held := make(map[int]int) // length of each run, by its first page
	for id := 1; id < 5000; id++ {
		if rnd.IntN(3) == 0 && len(held) > 0 {
			for page, n := range held {
				model.put(page, n)
				r.put(page, n)
				delete(held, page)
				break
			}
			continue
		}
		n, high := 1+rnd.IntN(300), rnd.IntN(2) == 0
		fits := r.fits(n)
		page, ok := r.take(n, high)
		switch {
		case ok != fits:
			t.Fatalf("fits = %v, take = %v", fits, ok)
		case ok:
			model.take(t, page, n, id)
			held[page] = n
		case model.hasRun(n):
			t.Fatalf("%d pages in a row were free", n)
		}
	}
	for page, n := range held {
		r.put(page, n)
	}
	if r.free != pages {
		t.Errorf("%d pages free of %d", r.free, pages)
	}
	dirty := r.touched
	r.discard(func(page, n int) bool { dirty -= n; return true })
	if dirty != 0 || r.touched != 0 {
		t.Errorf("%d dirty pages kept, %d counted", dirty, r.touched)
	}
}
