package names

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestSketch: counts are as wrong as they say at most, and the keys that come often are all there.
func TestSketch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	z := rand.NewZipf(r, 1.2, 1, 100_000)
	s := newSketch[uint64](100)
	exact := make(map[uint64]float64)
	const n = 200_000
	for range n {
		k := z.Uint64()
		exact[k]++
		s.add(k, &tally{count: 1, seconds: 2})
	}
	if len(s.counters) != 100 || len(s.lowest) != 100 {
		t.Fatalf("%d counters, %d in the heap", len(s.counters), len(s.lowest))
	}
	for k, c := range s.counters {
		if c.count < exact[k] || c.count-c.over > exact[k] {
			t.Errorf("key %d came %v times, counted %v, %v too high at most", k, exact[k], c.count, c.over)
		}
		if c.seconds != 2*(c.count-c.over) {
			t.Errorf("key %d: %v seconds", k, c.seconds)
		}
	}
	if s.missing() > n/100 {
		t.Errorf("the lowest of 100 counters has %v of %d", s.missing(), n)
	}
	for k, count := range exact {
		if s.counters[k] == nil && count > s.missing() {
			t.Errorf("key %d came %v times and has no counter; the lowest has %v", k, count, s.missing())
		}
	}
}

// TestSample: the error of a sample is right for 19 of 20.
func TestSample(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	right := 0
	const tries, n, part = 1000, 5000, 0.1
	for range tries {
		s := newSketch[int](10)
		for range n {
			if r.Float64() < part {
				s.add(1, &tally{count: 1 / part, variance: 1 / part * (1/part - 1)})
			}
		}
		c := s.counters[1]
		if math.Abs(c.count-n) <= 2*math.Sqrt(c.variance) {
			right++
		}
	}
	if right < tries*93/100 || right > tries*98/100 {
		t.Errorf("%d of %d are within the error", right, tries)
	}
}

// TestSlots: what is older than is asked for is not counted, and the sum of slots says how wrong it may be.
func TestSlots(t *testing.T) {
	var h hot
	begin := time.Unix(1_000_000, 0)
	for i := range 15 {
		at := begin.Add(time.Duration(i) * slot)
		h.now(at).files.add(file{"nfs", "f"}, &tally{count: 1})
		if h.now(at.Add(slot-1)) != h.slots[0] {
			t.Fatal("a slot ends too soon")
		}
	}
	now := begin.Add(14*slot + slot/2)
	for minutes, want := range map[int]float64{1: 2, 5: 6, 10: 11} {
		slots, since := h.last(minutes, now)
		sum, high := total(slots, func(c *counts) *sketch[file] { return c.files })
		if got := sum[file{"nfs", "f"}].count; got != want || high[file{"nfs", "f"}] != 0 {
			t.Errorf("%d minutes: %v, want %v; too low by %v", minutes, got, want, high)
		}
		if want := begin.Add(time.Duration(14-minutes) * slot); !since.Equal(want) {
			t.Errorf("%d minutes: since %v, want %v", minutes, since, want)
		}
	}
	if slots, _ := h.last(1, now.Add(time.Hour)); len(slots) != 0 {
		t.Errorf("%d slots an hour later", len(slots))
	}
	// A key that a full sketch may have missed is too low by what that one's lowest has.
	full := h.now(now.Add(slot))
	for i := range mostFiles {
		full.files.add(file{"nfs", "g" + string(rune(0x100+i))}, &tally{count: 7})
	}
	slots, _ := h.last(1, now.Add(slot))
	_, high := total(slots, func(c *counts) *sketch[file] { return c.files })
	if got := high[file{"nfs", "f"}]; got != 7 {
		t.Errorf("too low by %v, want 7", got)
	}
	if got := high[file{"nfs", "gĀ"}]; got != 0 {
		t.Errorf("too low by %v, want 0", got)
	}
}
