package bench

import (
	"math/bits"
	"time"
)

// subBits gives each power of two 64 buckets: values are exact to 1/64.
const (
	subBits = 6
	sub     = 1 << subBits
	buckets = (64 - subBits) * sub
)

// A histogram counts durations of 0 to 292 years in buckets whose width is at
// most 1/64 of their value; below 64 ns it is exact. It is 30 KiB, adding to it
// does not allocate, and the zero histogram is empty. It is not safe for
// concurrent use.
type histogram struct {
	counts [buckets]uint64
	n      uint64
	sum    int64 // nanoseconds
	max    int64
}

// bucketOf returns the bucket of v. v must not be negative.
func bucketOf(v int64) int {
	if v < sub {
		return int(v)
	}
	e := bits.Len64(uint64(v)) - subBits - 1
	return (e+1)*sub + int(v>>e) - sub
}

// highest returns the largest value of a bucket.
func highest(bucket int) int64 {
	if bucket < sub {
		return int64(bucket)
	}
	e := bucket/sub - 1
	return int64(sub+bucket%sub+1)<<e - 1
}

// Add counts d. A negative one counts as 0.
func (h *histogram) Add(d time.Duration) {
	v := max(int64(d), 0)
	h.counts[bucketOf(v)]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

// Merge adds the durations of o to h.
func (h *histogram) Merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Reset empties h.
func (h *histogram) Reset() { *h = histogram{} }

// Count returns how many durations were added.
func (h *histogram) Count() uint64 { return h.n }

// Max returns the longest duration, exactly.
func (h *histogram) Max() time.Duration { return time.Duration(h.max) }

// Mean returns the exact average, or 0 when h is empty.
func (h *histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / int64(h.n))
}

// Quantile returns a duration that a fraction q of all durations does not exceed. It is
// too long by at most 1/64. It is 0 when h is empty.
func (h *histogram) Quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.n))
	if float64(rank) < q*float64(h.n) {
		rank++
	}
	rank = max(rank, 1)
	for i, n := range h.counts {
		if n >= rank {
			return time.Duration(min(highest(i), h.max))
		}
		rank -= n
	}
	return time.Duration(h.max)
}
