package iwarp

import (
	"math/rand/v2"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// The security checklist: RFC 5042, RFC 5040 Section 8.1, RFC 5041 Section 8.3. A
// test has the number of its item. After an attack each test wants a Terminate, the end
// of the connection, and unchanged memory.

// S1: STags are unpredictable, sparse, over all 32 bits, and not reused soon.
func TestS01_STags(t *testing.T) {
	tab := &table{limit: 1 << 20}
	order := mintMany(t, tab, 100000)
	checkSpread(t, order)
	checkSteps(t, order)
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	removeAll(t, tab, order)
	checkRetired(t, tab)
}

// mintMany adds n regions, and returns their STags in order.
func mintMany(t *testing.T, tab *table, n int) (order []uint32) {
	buf := make([]byte, 8)
	live := make(map[uint32]bool)
	for range n {
		r, err := tab.add(buf, fabric.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		s := r.stag
		if s == 0 || live[s] {
			t.Fatalf("STag %#x: zero or a duplicate", s)
		}
		if r.to&4095 != 0 || r.to >= 1<<47 {
			t.Fatalf("Tagged Offset %#x", r.to)
		}
		live[s] = true
		order = append(order, s)
	}
	return order
}

// checkSpread checks that each octet of the STags is spread evenly. A chi square of 255
// degrees of freedom has mean 255 and standard deviation 22.6.
func checkSpread(t *testing.T, stags []uint32) {
	var counts [4][256]int
	for _, s := range stags {
		for i := range 4 {
			counts[i][byte(s>>(8*i))]++
		}
	}
	want := float64(len(stags)) / 256
	for i := range counts {
		chi := 0.0
		for _, c := range counts[i] {
			d := float64(c) - want
			chi += d * d / want
		}
		if chi > 255+8*22.6 {
			t.Errorf("octet %d: chi square %.0f", i, chi)
		}
	}
}

// checkSteps checks that no difference between neighbours is frequent.
func checkSteps(t *testing.T, order []uint32) {
	steps := make(map[uint32]int)
	for i := 1; i < len(order); i++ {
		steps[order[i]-order[i-1]]++
	}
	for d, c := range steps {
		if c > 3 {
			t.Errorf("difference %#x occurs %d times", d, c)
		}
	}
}

// removeAll removes the STags from a full table, and checks lookups on the way.
func removeAll(t *testing.T, tab *table, order []uint32) {
	for i, s := range order {
		if r := tab.find(s); r == nil || r.stag != s {
			t.Fatalf("STag %#x is lost", s)
		}
		if _, ok := tab.remove(s); !ok {
			t.Fatalf("STag %#x cannot be removed", s)
		}
		if tab.find(s) != nil {
			t.Fatalf("STag %#x lives on", s)
		}
		if i%97 == 0 && i+1 < len(order) && tab.find(order[i+1]) == nil {
			t.Fatalf("STag %#x went with another", order[i+1])
		}
	}
	if tab.live != 0 || tab.used != retiredMax {
		t.Errorf("%d live, %d used; want 0 and %d", tab.live, tab.used, retiredMax)
	}
}

// checkRetired checks that a retired STag does not return before retiredMax others were
// retired.
func checkRetired(t *testing.T, tab *table) {
	buf := make([]byte, 8)
	r, _ := tab.add(buf, fabric.RemoteRead)
	old := r.stag
	tab.remove(old)
	for range retiredMax - 1 {
		r, _ := tab.add(buf, fabric.RemoteRead)
		if r.stag == old {
			t.Fatal("a retired STag came back")
		}
		tab.remove(r.stag)
		if i := tab.slot(old); i < 0 || tab.slots[i].region >= 0 {
			t.Fatal("a retired STag was forgotten")
		}
	}
}
