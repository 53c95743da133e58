package rdmaside

import "math/rand/v2"

// An xidTable finds the slot of a pending Call by its XID. Its size is fixed, so
// that a busy connection never allocates. It uses open addressing with linear
// probing and removes without tombstones. RPCSEC_GSS clients choose the XIDs of
// their Calls, so the hash is seeded.
type xidTable struct {
	entries []xidEntry // length is a power of two, at least twice the slots
	mask    uint32
	shift   uint8
	factor  uint32 // odd; random
	n       int    // entries in use
}

type xidEntry struct {
	xid  uint32
	slot uint32 // index plus one; 0 when the entry is empty
}

func (t *xidTable) init(calls int) {
	size := uint32(16)
	bits := uint8(4)
	for int(size) < 2*calls {
		size <<= 1
		bits++
	}
	t.entries = make([]xidEntry, size)
	t.mask = size - 1
	t.shift = 32 - bits
	t.factor = rand.Uint32() | 1
}

func (t *xidTable) home(xid uint32) uint32 { return (xid * t.factor) >> t.shift }

// get returns the slot of xid.
func (t *xidTable) get(xid uint32) (slot int, ok bool) {
	for i := t.home(xid); ; i = (i + 1) & t.mask {
		e := &t.entries[i]
		if e.slot == 0 {
			return 0, false
		}
		if e.xid == xid {
			return int(e.slot - 1), true
		}
	}
}

// put adds xid, which is not in the table.
func (t *xidTable) put(xid uint32, slot int) {
	if 2*t.n >= len(t.entries) {
		panic("BUG: rdmaside: more calls pending than slots")
	}
	t.n++
	i := t.home(xid)
	for t.entries[i].slot != 0 {
		i = (i + 1) & t.mask
	}
	t.entries[i] = xidEntry{xid: xid, slot: uint32(slot) + 1}
}

// remove removes xid if it is in the table.
func (t *xidTable) remove(xid uint32) {
	i := t.home(xid)
	for t.entries[i].xid != xid || t.entries[i].slot == 0 {
		if t.entries[i].slot == 0 {
			return
		}
		i = (i + 1) & t.mask
	}
	t.n--
	// Close the gap: move back every later entry of the run that may be here.
	for j := (i + 1) & t.mask; t.entries[j].slot != 0; j = (j + 1) & t.mask {
		home := t.home(t.entries[j].xid)
		if (j-home)&t.mask >= (j-i)&t.mask {
			t.entries[i] = t.entries[j]
			i = j
		}
	}
	t.entries[i] = xidEntry{}
}
