// Package xids finds pending Calls by their XIDs.
package xids

import "math/rand/v2"

// A Table maps the XIDs of the Calls that are pending on a connection to what the connection knows of them, which is
// never the zero value of V. Its zero value is not ready: New. It uses open addressing with linear probing, and
// removes without tombstones, which takes a third of the time of a map. RPCSEC_GSS clients choose the XIDs
// of their Calls, so the hash is seeded.
type Table[V comparable] struct {
	entries []entry[V] // the length is a power of two, and at most half of them are in use
	mask    uint32
	shift   uint8
	factor  uint32 // odd; random
	n       int    // entries in use
}

type entry[V comparable] struct {
	xid   uint32
	value V // zero: the entry is empty
}

// New returns an empty Table, which allocates nothing more until more than so many Calls are pending.
func New[V comparable](calls int) Table[V] {
	t := Table[V]{factor: rand.Uint32() | 1}
	bits := uint8(4)
	for 1<<bits < 2*calls {
		bits++
	}
	t.resize(bits)
	return t
}

func (t *Table[V]) resize(bits uint8) {
	t.entries = make([]entry[V], 1<<bits)
	t.mask, t.shift = 1<<bits-1, 32-bits
}

func (t *Table[V]) home(xid uint32) uint32 { return (xid * t.factor) >> (t.shift & 31) }

// Len is the number of XIDs.
func (t *Table[V]) Len() int { return t.n }

// Get returns the value of xid, or the zero value if it is not in the table.
func (t *Table[V]) Get(xid uint32) V {
	_, v := t.Find(xid)
	return v
}

// Find returns what Get does, and where xid is in the table, for RemoveAt. Put moves it.
func (t *Table[V]) Find(xid uint32) (at uint32, value V) {
	var none V
	for i := t.home(xid) & t.mask; ; i = (i + 1) & t.mask {
		e := &t.entries[i]
		if e.xid == xid || e.value == none {
			return i, e.value
		}
	}
}

// Put adds xid with a value that is not zero. It reports false, and adds nothing, if xid is in the table.
func (t *Table[V]) Put(xid uint32, value V) bool {
	var none V
	if 2*t.n >= len(t.entries) {
		t.grow()
	}
	at, old := t.Find(xid)
	if old != none {
		return false
	}
	t.n++
	t.entries[at] = entry[V]{xid, value}
	return true
}

func (t *Table[V]) grow() {
	var none V
	old := t.entries
	t.resize(32 - t.shift + 1)
	for _, e := range old {
		if e.value != none {
			at, _ := t.Find(e.xid)
			t.entries[at] = e
		}
	}
}

// Remove removes xid if it is in the table.
func (t *Table[V]) Remove(xid uint32) {
	var none V
	if at, v := t.Find(xid); v != none {
		t.RemoveAt(at)
	}
}

// RemoveAt removes the XID that is at i.
func (t *Table[V]) RemoveAt(i uint32) {
	var none V
	t.n--
	// Close the gap: move back every later entry of the run that may be here.
	for j := (i + 1) & t.mask; t.entries[j].value != none; j = (j + 1) & t.mask {
		home := t.home(t.entries[j].xid)
		if (j-home)&t.mask >= (j-i)&t.mask {
			t.entries[i] = t.entries[j]
			i = j
		}
	}
	t.entries[i] = entry[V]{}
}
