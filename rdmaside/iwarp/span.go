package iwarp

import (
	"slices"
	"unsafe"
)

// A span is a range of memory, by address. Spans are only compared.
type span struct{ lo, hi uintptr }

func spanOf(b []byte) span {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return span{lo, lo + uintptr(len(b))}
}

func (s span) overlaps(o span) bool { return s.lo < o.hi && o.lo < s.hi }

// after returns the number of spans that begin at or below lo. A span that begins at lo
// is inserted at this index.
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

// addSpan records that the peer may write b. It reports false if the peer may already
// write some of b. Spans do not overlap, so comparing with the neighbours suffices.
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
