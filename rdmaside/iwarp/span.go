package iwarp

import (
	"slices"
	"unsafe"
)

// A span is memory by address, for comparing only.
type span struct{ lo, hi uintptr }

func spanOf(b []byte) span {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return span{lo, lo + uintptr(len(b))}
}

func (s span) overlaps(o span) bool { return s.lo < o.hi && o.lo < s.hi }

// after is how many spans begin at or below lo, which is where one that begins
// there comes in, or comes after.
func (t *table) after(lo uintptr) int {
	i, j := 0, len(t.spans)
	for i < j {
		h := int(uint(i+j) >> 1)
		if t.spans[h].lo <= lo {
			i = h + 1
		} else {
			j = h
		}
	}
	return i
}

// addSpan notes that the peer may write b, and reports false if it may already.
// Spans do not overlap, so only the neighbours are looked at.
func (t *table) addSpan(b []byte) bool {
	s := spanOf(b)
	if s.lo == s.hi {
		return true
	}
	i := t.after(s.lo)
	if i > 0 && t.spans[i-1].overlaps(s) || i < len(t.spans) && t.spans[i].overlaps(s) {
		return false
	}
	t.spans = slices.Insert(t.spans, i, s)
	return true
}

func (t *table) dropSpan(b []byte) {
	s := spanOf(b)
	if i := t.after(s.lo); i > 0 && t.spans[i-1] == s {
		t.spans = slices.Delete(t.spans, i-1, i)
	}
}
