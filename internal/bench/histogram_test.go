package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h, a, b := newHistogram(), newHistogram(), newHistogram()
	var all []time.Duration
	for i := range 10000 {
		d := time.Duration(math.Exp(rng.NormFloat64()*2 + 10))
		all = append(all, d)
		h.Add(d)
		if i%2 == 0 {
			a.Add(d)
		} else {
			b.Add(d)
		}
	}
	slices.Sort(all)
	a.Merge(b)
	if !a.counts.Equals(h.counts) || a.sum != h.sum || a.max != h.max {
		t.Error("two halves merged are not the whole")
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
		got := h.Quantile(q)
		if got < want || float64(got-want) > float64(want)/1000 {
			t.Errorf("quantile %g = %d, want %d", q, got, want)
		}
	}
	if h.Max() != all[len(all)-1] || h.Count() != uint64(len(all)) {
		t.Errorf("max %d of %d", h.Max(), h.Count())
	}
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	if h.Mean() != sum/time.Duration(len(all)) {
		t.Errorf("mean %d, want %d", h.Mean(), sum/time.Duration(len(all)))
	}
	h.Reset()
	if h.Quantile(0.5) != 0 || h.Mean() != 0 || h.Max() != 0 || h.Count() != 0 {
		t.Error("not empty after Reset")
	}
	h.Add(2 * longest)
	if got := h.Quantile(1); got < longest || got-longest > longest/1000 || h.Max() != 2*longest || h.Count() != 1 {
		t.Errorf("a duration longer than the longest: %v of %d, at most %v", got, h.Count(), h.Max())
	}
	h.Reset()
	h.Add(-time.Second)
	if h.Quantile(1) != 0 || h.Count() != 1 {
		t.Error("a negative duration is not 0")
	}
}

func TestHistogramAllocs(t *testing.T) {
	h := newHistogram()
	if n := testing.AllocsPerRun(1000, func() { h.Add(12345) }); n != 0 {
		t.Errorf("Add allocates %g times", n)
	}
}

func BenchmarkHistogramAdd(b *testing.B) {
	h := newHistogram()
	d := time.Duration(0)
	for b.Loop() {
		h.Add(d)
		d += 997
	}
}
