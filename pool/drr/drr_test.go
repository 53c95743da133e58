package drr

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A member spends cost in each turn that it gets, and gains gain in each round.
type member struct {
	turn       Turn[member]
	cost, gain int
	spent      int
}

func members(costGain ...[2]int) (all []*member) {
	for _, c := range costGain {
		m := &member{cost: c[0], gain: c[1]}
		m.turn.Of = m
		all = append(all, m)
	}
	return all
}

// next returns the member that spends next.
func next(r *Ring[member]) *member {
	return r.Choose(func(m *member) int { return m.cost }, func(m *member) int { return m.gain })
}

// spend has the member whose turn it is spend, as the owner of a ring does, and returns it.
func spend(r *Ring[member]) *member {
	m := next(r)
	m.turn.Deficit -= m.cost
	m.spent += m.cost
	if m.turn.Deficit < m.cost {
		r.Pass(&m.turn)
	}
	return m
}

// TestChooseShares: members spend in the ratio of what they gain, whatever one turn costs them.
func TestChooseShares(t *testing.T) {
	var r Ring[member]
	all := members([2]int{1, 64}, [2]int{100, 64}, [2]int{7, 128}, [2]int{1000, 64})
	for _, m := range all {
		r.Add(&m.turn)
	}
	for all[3].spent < 100_000 {
		spend(&r)
	}
	for i, m := range all {
		if got := m.spent * 64 / m.gain; got < 98_000 || got > 102_000 {
			t.Errorf("member %d has spent %d for a gain of 64, and another 100000", i, got)
		}
	}
}

// TestChooseAlone: a member that is alone needs no rounds, and saves nothing by them.
func TestChooseAlone(t *testing.T) {
	var r Ring[member]
	m := members([2]int{1 << 20, 1})[0]
	r.Add(&m.turn)
	if spend(&r) != m || m.turn.Deficit != 0 {
		t.Errorf("it has saved %d", m.turn.Deficit)
	}
}

// TestPutResumes: a member that comes back keeps its savings and its turn only if it resumes the turn, and has savings.
func TestPutResumes(t *testing.T) {
	for _, tt := range []struct {
		resumes bool
		saved   int
		first   bool
	}{{true, 5, true}, {true, 0, false}, {true, -5, false}, {false, 5, false}} {
		var r Ring[member]
		all := members([2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1})
		r.Add(&all[0].turn)
		r.Add(&all[1].turn)
		all[2].turn.Deficit = tt.saved
		r.Put(&all[2].turn, tt.resumes)
		order, want, saved := slices.Collect(r.All), []*member{all[0], all[1], all[2]}, 0
		if tt.first {
			want, saved = []*member{all[2], all[0], all[1]}, tt.saved
		}
		if !slices.Equal(order, want) || all[2].turn.Deficit != saved {
			t.Errorf("%+v: it has saved %d, and is the first: %v", tt, all[2].turn.Deficit, r.Head() == all[2])
		}
	}
}

// TestRingIsList: whatever is added, removed and passed, a ring has its members in the order of their turns.
func TestRingIsList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var r Ring[member]
	var want []*member
	all := members(make([][2]int, 6)...)
	for step := range 10_000 {
		m := all[rng.IntN(len(all))]
		i := slices.Index(want, m)
		switch {
		case i < 0:
			r.Add(&m.turn)
			want = append(want, m)
		case rng.IntN(2) == 0:
			r.Remove(&m.turn)
			want = slices.Delete(want, i, i+1)
		default:
			r.Pass(&m.turn) // of no effect unless it is its turn
			if i == 0 {
				want = append(want[1:], m)
			}
		}
		if got := slices.Collect(r.All); !slices.Equal(got, want) || r.Empty() != (len(want) == 0) || m.turn.In() != slices.Contains(want, m) {
			t.Fatalf("step %d: the ring has %d members, want %d, or another order", step, len(got), len(want))
		}
		if r.Empty() != (r.Head() == nil) || !r.Empty() && r.Head() != want[0] {
			t.Fatalf("step %d: another member is the first", step)
		}
	}
}

// TestAllRemoves: who goes through the members may remove each that it is given, and may stop.
func TestAllRemoves(t *testing.T) {
	var r Ring[member]
	all := members(make([][2]int, 5)...)
	for _, m := range all {
		r.Add(&m.turn)
	}
	n := 0
	for m := range r.All {
		if n++; m != all[4] {
			r.Remove(&m.turn)
		}
	}
	if n != 5 || r.Head() != all[4] {
		t.Errorf("%d members were gone through, want 5", n)
	}
	for _, m := range all[:4] {
		r.Add(&m.turn)
	}
	for m := range r.All {
		if m == all[4] {
			break
		}
		t.Error("it goes on")
	}
}
