package metrics

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Handler returns a handler that serves all series. The scraper chooses the format: Prometheus' text or
// binary format, or OpenMetrics. The binary one has native histograms and the times at which series
// began; that and OpenMetrics have exemplars.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 8})
}

// Gather implements prometheus.Gatherer.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) { return r.exported.Gather() }

// collect is a prometheus.CollectorFunc. Functions of series may take locks.
func (r *series) collect(metrics chan<- prometheus.Metric) {
	if f := r.before.Load(); f != nil {
		(*f)()
	}
	r.mu.Lock()
	all := slices.Clone(r.sorted)
	r.mu.Unlock()
	for _, s := range all {
		metrics <- s.constant()
	}
}

// A constant is a constant metric of the library, as the library writes it. It adds what the library cannot
// express: a histogram that is classic and native at once, labels that series share, and a metric that is given
// out again while its value is the same. Most values are the same at the next scrape. What that saves pays for the
// checks that the library's registry makes.
type constant struct {
	desc    *prometheus.Desc
	written dto.Metric
	value   float64 // of a histogram, how many values it has
	sum     uint64  // of a histogram
}

// Desc implements prometheus.Metric.
func (c *constant) Desc() *prometheus.Desc { return c.desc }

// Write implements prometheus.Metric.
func (c *constant) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Gauge, out.Histogram = c.written.Label, c.written.Counter, c.written.Gauge, c.written.Histogram
	return nil
}

// constant returns the present value of s.
func (s *madeSeries) constant() *constant {
	value, sum, counts := s.read()
	if c := s.given.Load(); c != nil && c.value == value && c.sum == sum {
		return c
	}
	c := &constant{desc: s.def.desc, value: value, sum: sum}
	switch s.def.Kind {
	case KindCounter:
		write(&c.written, prometheus.MustNewConstMetricWithCreatedTimestamp(c.desc, prometheus.CounterValue, c.value, s.created))
	case KindGauge:
		write(&c.written, prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, c.value))
	case KindHistogram:
		s.value.(*Histogram).write(c, counts, s.created)
	}
	c.written.Label = s.labels
	s.given.Store(c)
	return c
}

// read returns the value of s or, if it is a histogram, how many values it has, their sum, and the counts of cells.
func (s *madeSeries) read() (value float64, sum uint64, counts []uint64) {
	switch v := s.value.(type) {
	case *Counter:
		value = float64(v.Value()) / s.def.unit()
	case *Gauge:
		value = float64(v.Value()) / s.def.unit()
	case *function:
		value = v.value()
	case *Histogram:
		counts, sum = v.values()
		for _, n := range counts {
			value += float64(n)
		}
	}
	return value, sum, counts
}

// write writes m to out. The library's constant metrics have no errors.
func write(out *dto.Metric, m prometheus.Metric) {
	if err := m.Write(out); err != nil {
		panic("BUG: metrics: " + err.Error())
	}
}

// write makes c the histogram whose cells have these counts.
func (h *Histogram) write(c *constant, counts []uint64, created time.Time) {
	cells, sum := h.cells, float64(c.sum)/h.cells.unit
	bounds, total := make(map[float64]uint64, len(cells.bounds)), uint64(0)
	for i, n := range cells.classicCounts(counts) {
		total += n
		if i < len(cells.bounds) { // the formats add the last bucket themselves
			bounds[float64(cells.bounds[i])/cells.unit] = total
		}
	}
	native, zero := make(map[int]int64, len(cells.bounds)), uint64(0)
	for i, n := range counts {
		switch index := int(cells.native[i]); {
		case index == 0:
			zero += n
		case n != 0:
			native[cells.low<<schema+index] += int64(n)
		}
	}
	var classic dto.Metric
	write(&classic, prometheus.MustNewConstHistogram(c.desc, total, sum, bounds))
	write(&c.written, prometheus.MustNewConstNativeHistogram(c.desc, total, sum, native, nil, zero, schema, math.Ldexp(1, cells.low), created))
	both := c.written.Histogram
	both.Bucket = classic.Histogram.Bucket
	// This says that it is a native histogram, if no bucket does. The library says it if the zero bucket has no width.
	if len(both.PositiveSpan) == 0 {
		both.PositiveSpan = []*dto.BucketSpan{{Offset: new(int32), Length: new(uint32)}}
	}
	var exemplars []prometheus.Exemplar
	for _, call := range h.calls() {
		if !call.At.IsZero() {
			exemplars = append(exemplars, prometheus.Exemplar{Value: float64(call.Value) / cells.unit, Labels: call.labels(), Timestamp: call.At})
		}
	}
	if len(exemplars) > 0 {
		write(&c.written, prometheus.MustNewMetricWithExemplars(c, exemplars...))
	}
}

// labels returns the labels of call as an exemplar.
func (call *Call) labels() prometheus.Labels {
	all := prometheus.Labels{"xid": fmt.Sprintf("%#08x", call.XID)}
	if call.UpstreamXID != 0 {
		all["upstream_xid"] = fmt.Sprintf("%#08x", call.UpstreamXID)
	}
	return all
}
