package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longest is the longest duration that a histogram distinguishes from longer ones, and digits is how many significant
// digits of a duration it keeps.
const (
	longest = time.Hour
	digits  = 3
)

// A histogram counts durations. The maximum and the mean are exact, quantiles too long by a thousandth at most. Adding
// to it does not allocate. It is not safe for concurrent use.
type histogram struct {
	counts   *hdrhistogram.Histogram
	sum, max time.Duration
}

func newHistogram() *histogram {
	return &histogram{counts: hdrhistogram.New(1, int64(longest), digits)}
}

// Add counts d. A negative one counts as 0.
func (h *histogram) Add(d time.Duration) {
	d = max(d, 0)
	_ = h.counts.RecordValue(int64(min(d, longest))) // within the bounds of counts, so no error
	h.sum += d
	h.max = max(h.max, d)
}

// Merge adds the durations of o to h.
func (h *histogram) Merge(o *histogram) {
	h.counts.Merge(o.counts)
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Reset empties h.
func (h *histogram) Reset() {
	h.counts.Reset()
	h.sum, h.max = 0, 0
}

// Count returns how many durations were added.
func (h *histogram) Count() uint64 { return uint64(h.counts.TotalCount()) }

// Max returns the longest duration.
func (h *histogram) Max() time.Duration { return h.max }

// Mean returns the average, or 0 when h is empty.
func (h *histogram) Mean() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return h.sum / time.Duration(h.Count())
}

// Quantile returns a duration that a fraction q of all durations, to the nearest whole number of them, does not exceed.
// It is 0 when h is empty.
func (h *histogram) Quantile(q float64) time.Duration {
	return min(time.Duration(h.counts.ValueAtPercentile(100*q)), h.max)
}
