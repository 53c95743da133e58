package iwarp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A placementModel is a region and what a peer has written to it, octet by octet.
type placementModel struct {
	t       *testing.T
	table   *table
	r       *region
	written []bool
}

const staleOctet, freshOctet = 0xee, 0x11

func newPlacementModel(t *testing.T, tab *table, size int) *placementModel {
	t.Helper()
	r, err := tab.add(bytes.Repeat([]byte{staleOctet}, size), fabric.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return &placementModel{t: t, table: tab, r: r, written: make([]bool, size)}
}

// write places octets as the qp does: first the payload, then the record of it.
func (m *placementModel) write(off, n int) {
	for i := off; i < off+n; i++ {
		m.r.buf[i], m.written[i] = freshOctet, true
	}
	m.table.wrote(m.r, uint32(off), uint32(n))
}

// run is the number of octets before the first that was not written.
func (m *placementModel) run() int {
	if i := bytes.IndexByte(m.r.buf, staleOctet); i >= 0 {
		return i
	}
	return len(m.r.buf)
}

// check asserts that no octet before the end of the run is stale, and that the run is as long as
// that allows. Octets that were written must still be there.
func (m *placementModel) check(what string) {
	m.t.Helper()
	if got, want := int(m.table.placed(m.r.stag)), m.run(); got != want {
		m.t.Fatalf("%s: %d octets placed, want %d", what, got, want)
	}
	for i, w := range m.written {
		if w && m.r.buf[i] != freshOctet {
			m.t.Fatalf("%s: octet %d was written and is %#x", what, i, m.r.buf[i])
		}
	}
}

func newPlacementTable() *table { return &table{limit: 1000} }

func TestPlacement(t *testing.T) {
	for _, tt := range []struct {
		name   string
		writes [][2]int // offset, length
		run    int
	}{
		{"nothing", nil, 0},
		{"in order", [][2]int{{0, 10}, {10, 10}, {20, 80}}, 100},
		{"the start is missing", [][2]int{{1, 99}}, 0},
		{"a gap", [][2]int{{0, 10}, {11, 89}}, 10},
		{"a gap that is filled", [][2]int{{0, 10}, {11, 89}, {10, 1}}, 100},
		{"backwards", [][2]int{{90, 10}, {80, 10}, {40, 40}, {0, 40}}, 100},
		{"repeated", [][2]int{{0, 10}, {0, 10}, {5, 5}, {30, 5}, {30, 5}}, 10},
		{"overlapping", [][2]int{{0, 10}, {5, 10}, {30, 10}, {25, 10}, {38, 10}, {12, 14}}, 48},
		{"over everything", [][2]int{{10, 5}, {20, 5}, {30, 5}, {0, 100}}, 100},
		{"over some islands", [][2]int{{10, 5}, {20, 5}, {30, 5}, {12, 12}, {0, 10}}, 25},
	} {
		m := newPlacementModel(t, newPlacementTable(), 100)
		for _, w := range tt.writes {
			m.write(w[0], w[1])
		}
		m.check(tt.name)
		if got := int(m.table.placed(m.r.stag)); got != tt.run {
			t.Errorf("%s: %d octets placed, want %d", tt.name, got, tt.run)
		}
	}
}

// TestPlacementAtRandom checks that no octet counts as placed that holds what the memory held
// before, however many runs of octets a peer writes.
func TestPlacementAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tab := newPlacementTable()
	for range 300 {
		size := 1 + r.IntN(2000)
		m := newPlacementModel(t, tab, size)
		most := 1 + r.IntN(1+size/(1+r.IntN(200)))
		for range 200 {
			off := r.IntN(size)
			m.write(off, 1+r.IntN(min(most, size-off)))
			m.check("at random")
		}
		tab.remove(m.r.stag)
	}
	if n := len(tab.islands); n != 1 {
		t.Errorf("%d islands are kept for one region at a time", n)
	}
}

// TestPlacementOfEveryOtherOctet checks that a peer can make this side remember little, and clear
// each octet once.
func TestPlacementOfEveryOtherOctet(t *testing.T) {
	m := newPlacementModel(t, newPlacementTable(), 4096)
	for i := 1; i < 4096; i += 2 {
		m.write(i, 1)
		m.check("every other octet")
		if n := m.r.placed.more.n; n > maxIslands {
			t.Fatalf("%d islands", n)
		}
	}
	for i := 0; i < 4096; i += 2 {
		m.write(i, 1)
	}
	m.check("the others")
	if m.r.placed.more != nil || m.r.placed.run != 4096 {
		t.Errorf("%+v after every octet was written", m.r.placed)
	}
}

func TestPlacementAllocs(t *testing.T) {
	tab := newPlacementTable()
	buf := make([]byte, 1000)
	do := func() {
		r, err := tab.add(buf, fabric.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		for i := 900; i >= 0; i -= 100 {
			tab.wrote(r, uint32(i), 50)
			tab.wrote(r, uint32(i+50), 50)
		}
		tab.remove(r.stag)
	}
	for range 2 * retiredMax { // until the table has its size
		do()
	}
	if n := testing.AllocsPerRun(100, do); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
