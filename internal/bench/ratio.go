package bench

import (
	"fmt"
	"slices"
)

// Quartiles summarise the figures of N rounds.
type Quartiles struct {
	Low    float64 `json:"low"`
	Median float64 `json:"median"`
	High   float64 `json:"high"`
	N      int     `json:"n"`
}

// quartiles sorts x and returns its quartiles, interpolated between neighbours.
func quartiles(x []float64) Quartiles {
	slices.Sort(x)
	return Quartiles{Low: quantile(x, 0.25), Median: quantile(x, 0.5), High: quantile(x, 0.75), N: len(x)}
}

// quantile returns a quantile of the sorted x, or 0 when x is empty.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	at := q * float64(len(x)-1)
	i := int(at)
	if i+1 >= len(x) {
		return x[len(x)-1]
	}
	return x[i] + (at-float64(i))*(x[i+1]-x[i])
}

// String formats q as "1.23 [1.10-1.31]", or as a dash when N is 0.
func (q Quartiles) String() string {
	if q.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f [%.2f-%.2f]", q.Median, q.Low, q.High)
}

// A Metric is one figure of a Result.
type Metric struct {
	Name string
	// Of returns the figure. It reports false when the Result does not have it.
	Of func(*Result) (float64, bool)
}

// Metrics are the figures that are compared.
var Metrics = []Metric{
	{"calls/s", func(r *Result) (float64, bool) { return r.CallsPerSecond, true }},
	{"GB/s", func(r *Result) (float64, bool) { return r.GBPerSecond, true }},
	{"p50", func(r *Result) (float64, bool) { return r.Latency.P50, true }},
	{"p99", func(r *Result) (float64, bool) { return r.Latency.P99, true }},
	{"CPU/call", func(r *Result) (float64, bool) { return r.cpu(func(c *CPU) float64 { return c.PerCall }) }},
	{"CPU/GB", func(r *Result) (float64, bool) { return r.cpu(func(c *CPU) float64 { return c.PerGB }) }},
}

// ratios divides the metric m of a by the same metric of b, round by round. It leaves out a
// round without a Result of both, and a round in which b's figure is 0.
func ratios(m Metric, a, b []*Result) Quartiles {
	var x []float64
	for i := range min(len(a), len(b)) {
		if a[i] == nil || b[i] == nil {
			continue
		}
		va, ok := m.Of(a[i])
		vb, ok2 := m.Of(b[i])
		if ok && ok2 && vb > 0 {
			x = append(x, va/vb)
		}
	}
	return quartiles(x)
}

// figures returns the quartiles of metric m of a.
func figures(m Metric, a []*Result) Quartiles {
	var x []float64
	for _, r := range a {
		if r == nil {
			continue
		}
		if v, ok := m.Of(r); ok {
			x = append(x, v)
		}
	}
	return quartiles(x)
}
