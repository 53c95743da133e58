package rules

import "slices"

// A table says for each number in which cases a condition holds for it. The numbers are divided into runs
// with the same cases.
type table struct {
	starts []uint32 // of the runs, ascending; the first is 0
	cases  []cases  // of the runs
	none   cases    // that have no such condition
}

// newTable makes the table of n cases, each of which has ranges, or no condition.
func newTable(n int, ranges func(i int) []Range) (t table) {
	t.starts = []uint32{0}
	for i := range n {
		of := ranges(i)
		if len(of) == 0 {
			t.none.add(i)
		}
		for _, r := range of {
			t.starts = append(t.starts, r.Low)
			if next := r.High + 1; next != 0 {
				t.starts = append(t.starts, next)
			}
		}
	}
	slices.Sort(t.starts)
	t.starts = slices.Compact(t.starts)
	t.cases = make([]cases, len(t.starts))
	for k, start := range t.starts {
		t.cases[k] = t.none
		for i := range n {
			if slices.ContainsFunc(ranges(i), func(r Range) bool { return r.contains(start) }) {
				t.cases[k].add(i)
			}
		}
	}
	return t
}

// at returns the cases in which the condition holds for v.
func (t *table) at(v uint32) *cases {
	low, high := 0, len(t.starts)
	for high-low > 1 {
		if mid := int(uint(low+high) / 2); t.starts[mid] <= v {
			low = mid
		} else {
			high = mid
		}
	}
	return &t.cases[low]
}
