package xids

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// FuzzTable: the table behaves like a map, also when it grows.
func FuzzTable(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0}, uint32(1))
	f.Add(make([]byte, 400), uint32(0x9e3779b1))
	f.Add(func() (b []byte) {
		for i := range uint32(32) {
			b = binary.LittleEndian.AppendUint32(b, i)
		}
		return b
	}(), uint32(3))
	f.Fuzz(func(t *testing.T, in []byte, factor uint32) {
		table := New[int](4)
		table.factor = factor | 1
		want := make(map[uint32]int)
		for i := 1; len(in) >= 4; i++ {
			// XIDs of few bits collide often.
			xid := binary.LittleEndian.Uint32(in) & 0x8000001f
			in = in[4:]
			if _, ok := want[xid]; ok {
				table.Remove(xid)
				delete(want, xid)
			} else if len(want) < 24 {
				if !table.Put(xid, i) || table.Put(xid, i+1) {
					t.Fatalf("Put(%#x) must add it once", xid)
				}
				want[xid] = i
			}
			table.Remove(0x7fffffff) // not there
			for xid := range uint32(32) {
				for _, xid := range []uint32{xid, xid | 0x80000000} {
					if got := table.Get(xid); got != want[xid] {
						t.Fatalf("Get(%#x) = %d, want %d", xid, got, want[xid])
					}
				}
			}
			if table.Len() != len(want) || 2*table.Len() > len(table.entries) {
				t.Fatalf("Len() = %d of %d entries, want %d", table.Len(), len(table.entries), len(want))
			}
		}
	})
}

func TestTableFull(t *testing.T) {
	const calls = 1000
	table := New[*int](calls)
	entries := len(table.entries)
	xids := rand.Perm(calls)
	for i, xid := range xids {
		table.Put(uint32(xid), &xids[i])
	}
	if len(table.entries) != entries {
		t.Errorf("%d Calls need %d entries, made %d", calls, len(table.entries), entries)
	}
	for i, xid := range xids {
		if got := table.Get(uint32(xid)); got != &xids[i] {
			t.Fatalf("Get(%d) = %p", xid, got)
		}
	}
	for _, xid := range xids {
		table.Remove(uint32(xid))
	}
	for _, e := range table.entries {
		if e.value != nil {
			t.Fatal("an entry is left")
		}
	}
}

func BenchmarkTable(b *testing.B) {
	table := New[int32](128)
	for i := range 100 {
		table.Put(uint32(i), 1)
	}
	b.ReportAllocs()
	xid := uint32(1000)
	for b.Loop() {
		table.Put(xid, 1)
		if table.Get(xid) == 0 {
			b.Fatal("gone")
		}
		table.Remove(xid)
		xid++
	}
}
