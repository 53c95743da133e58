package regmem

import "testing"

// TestPin checks that the extents are the whole arena, that each lease is in one of them, and that
// the kernel gets no page back once they are known.
func TestPin(t *testing.T) {
	a := newArena(t, Options{Budget: 2*extentSize + 64<<10})
	extents := a.Pin()
	if len(extents) != 3 || len(extents[0]) != extentSize || len(extents[2]) != 64<<10 {
		t.Fatalf("%d extents", len(extents))
	}
	for i, e := range extents {
		if &e[0] != &a.mem[i*extentSize] || cap(e) != len(e) {
			t.Errorf("extent %d is elsewhere, or reaches beyond its end", i)
		}
	}
	for _, n := range []int{1, 4096, 64 << 10, 1 << 20, MaxLease} {
		l := lease(t, a, n)
		b := l.Bytes()
		in := 0
		for _, e := range extents {
			for at := range e {
				if &e[at] == &b[0] && at+len(b) <= len(e) {
					in++
				}
			}
		}
		if in != 1 {
			t.Errorf("a lease of %d octets is in %d extents", n, in)
		}
		fill(b, 0x55)
		l.Release()
	}
	for range 3 {
		if n := a.Trim(); n != 0 {
			t.Errorf("Trim gave back %d octets of a pinned arena", n)
		}
	}
}
