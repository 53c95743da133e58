package rdmaside

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// The table behaves like a map.
func FuzzXIDTable(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0}, uint32(1))
	f.Add(make([]byte, 400), uint32(0x9e3779b1))
	f.Fuzz(func(t *testing.T, in []byte, factor uint32) {
		var table xidTable
		table.init(8)
		table.factor = factor | 1
		want := make(map[uint32]int)
		for i := 0; len(in) >= 4; i++ {
			// XIDs of few bits collide often.
			xid := binary.LittleEndian.Uint32(in) & 0x8000001f
			in = in[4:]
			if _, ok := want[xid]; ok {
				table.remove(xid)
				delete(want, xid)
			} else if len(want) < 8 {
				table.put(xid, i)
				want[xid] = i
			}
			table.remove(0x7fffffff) // not there
			for xid := range uint32(32) {
				for _, xid := range []uint32{xid, xid | 0x80000000} {
					slot, ok := table.get(xid)
					if wantSlot, wantOK := want[xid]; ok != wantOK || ok && slot != wantSlot {
						t.Fatalf("get(%#x) = %d, %v; want %d, %v", xid, slot, ok, wantSlot, wantOK)
					}
				}
			}
		}
		if table.n != len(want) {
			t.Errorf("n = %d, want %d", table.n, len(want))
		}
	})
}

func TestXIDTableFull(t *testing.T) {
	var table xidTable
	table.init(1000)
	xids := rand.Perm(1000)
	for i, xid := range xids {
		table.put(uint32(xid), i)
	}
	for i, xid := range xids {
		if slot, ok := table.get(uint32(xid)); !ok || slot != i {
			t.Fatalf("get(%d) = %d, %v", xid, slot, ok)
		}
	}
	for _, xid := range xids {
		table.remove(uint32(xid))
	}
	for _, e := range table.entries {
		if e.slot != 0 {
			t.Fatal("an entry is left")
		}
	}
}

func BenchmarkXIDTable(b *testing.B) {
	var table xidTable
	table.init(128)
	for i := range 100 {
		table.put(uint32(i), i)
	}
	xid := uint32(1000)
	for b.Loop() {
		table.put(xid, 1)
		if _, ok := table.get(xid); !ok {
			b.Fatal("gone")
		}
		table.remove(xid)
		xid++
	}
}
