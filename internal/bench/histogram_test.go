package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	last := -1
	for _, v := range []int64{0, 1, 63, 64, 65, 127, 128, 129, 130, 1000, 1 << 20, 1<<20 + 1<<14, math.MaxInt64} {
		b := bucketOf(v)
		if b < last || b >= buckets {
			t.Errorf("bucket of %d is %d, after %d", v, b, last)
		}
		last = b
		high := highest(b)
		if high < v || float64(high-v) > float64(v)/sub {
			t.Errorf("bucket of %d reaches to %d", v, high)
		}
		if v < math.MaxInt64 && bucketOf(high) != b || high < math.MaxInt64 && bucketOf(high+1) != b+1 {
			t.Errorf("bucket %d of %d: its highest value %d is in %d, the next in %d", b, v, high, bucketOf(high), bucketOf(high+1))
		}
	}
}

func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h, a, b histogram
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
	a.Merge(&b)
	if a != h {
		t.Error("two halves merged are not the whole")
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
		got := h.Quantile(q)
		if got < want || float64(got-want) > float64(want)/sub {
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
	h.Add(-time.Second)
	if h.Quantile(1) != 0 || h.Count() != 1 {
		t.Error("a negative duration is not 0")
	}
}

func TestHistogramAllocs(t *testing.T) {
	var h histogram
	if n := testing.AllocsPerRun(1000, func() { h.Add(12345) }); n != 0 {
		t.Errorf("Add allocates %g times", n)
	}
}

func BenchmarkHistogramAdd(b *testing.B) {
	var h histogram
	d := time.Duration(0)
	for b.Loop() {
		h.Add(d)
		d += 997
	}
}
