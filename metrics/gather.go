package metrics

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Handler returns a handler that serves all series. The scraper chooses the format: Prometheus' text or
// binary format, or OpenMetrics. The binary one has native histograms and the times at which series
// began; that and OpenMetrics have exemplars.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(r.Gather), promhttp.HandlerOpts{
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: 8,
	})
}

// A family are the series of one definition.
type family struct {
	def    *Definition
	series []*madeSeries // in the order of their labels
}

// add adds s in its place.
func (f *family) add(s *madeSeries) {
	i, _ := slices.BinarySearchFunc(f.series, s, compareSeries)
	f.series = slices.Insert(f.series, i, s)
}

func (f *family) remove(s *madeSeries) {
	if i, found := slices.BinarySearchFunc(f.series, s, compareSeries); found {
		f.series = slices.Delete(f.series, i, i+1)
	}
}

func compareSeries(a, b *madeSeries) int { return slices.Compare(a.values, b.values) }

// Gather implements prometheus.Gatherer.
func (r *Registry) Gather() (all []*dto.MetricFamily, err error) {
	if f := r.before.Load(); f != nil {
		(*f)()
	}
	r.mu.Lock()
	families := make([]family, 0, len(r.families))
	for _, f := range r.families {
		families = append(families, family{f.def, slices.Clone(f.series)})
	}
	process := r.process
	r.mu.Unlock()
	if process != nil {
		if all, err = process.Gather(); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	for i := range families {
		if f := &families[i]; len(f.series) > 0 {
			all = append(all, f.gather())
		}
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, nil
}

// gather reads the values of all series. Functions of series may take locks.
func (f *family) gather() *dto.MetricFamily {
	out := &dto.MetricFamily{Name: &f.def.fullName, Help: &f.def.Help, Type: f.def.Kind.dto(), Metric: make([]*dto.Metric, len(f.series))}
	if f.def.unitName != "" {
		out.Unit = &f.def.unitName
	}
	// The parts of all series of a family are allocated together.
	n := len(f.series)
	metrics, values := make([]dto.Metric, n), make([]float64, n)
	var counters []dto.Counter
	var gauges []dto.Gauge
	switch f.def.Kind {
	case KindCounter:
		counters = make([]dto.Counter, n)
	case KindGauge:
		gauges = make([]dto.Gauge, n)
	}
	unit := f.def.unit()
	for i, s := range f.series {
		m := &metrics[i]
		m.Label, out.Metric[i] = s.labels, m
		switch v := s.value.(type) {
		case *Counter:
			values[i] = float64(v.Value()) / unit
		case *Gauge:
			values[i] = float64(v.v.Load()) / unit
		case *function:
			values[i] = v.value()
		case *Histogram:
			m.Histogram = v.gather()
			m.Histogram.CreatedTimestamp = s.created
		}
		switch {
		case counters != nil:
			counters[i].Value, counters[i].CreatedTimestamp = &values[i], s.created
			m.Counter = &counters[i]
		case gauges != nil:
			gauges[i].Value = &values[i]
			m.Gauge = &gauges[i]
		}
	}
	return out
}

func (k Kind) dto() *dto.MetricType {
	switch k {
	case KindCounter:
		return dto.MetricType_COUNTER.Enum()
	case KindGauge:
		return dto.MetricType_GAUGE.Enum()
	default:
		return dto.MetricType_HISTOGRAM.Enum()
	}
}

// gather returns h as a classic and as a native histogram.
func (h *Histogram) gather() *dto.Histogram {
	c := h.cells
	counts, sum := h.values()
	out := &dto.Histogram{SampleSum: ptr(float64(sum) / c.unit), Bucket: make([]*dto.Bucket, 0, len(c.bounds)+1)}
	buckets, total := make([]dto.Bucket, len(c.bounds)+1), uint64(0)
	calls := h.calls()
	for i, n := range c.classicCounts(counts) {
		total += n
		b := &buckets[i]
		b.CumulativeCount, b.Exemplar = ptr(total), c.exemplar(&calls[i])
		switch {
		case i < len(c.bounds):
			b.UpperBound = ptr(float64(c.bounds[i]) / c.unit)
		case b.Exemplar != nil:
			b.UpperBound = ptr(math.Inf(+1))
		default:
			continue // the formats add the last bucket themselves
		}
		out.Bucket = append(out.Bucket, b)
		if b.Exemplar != nil {
			out.Exemplars = append(out.Exemplars, b.Exemplar)
		}
	}
	out.SampleCount = &total
	c.addNative(out, counts)
	return out
}

// addNative adds the native histogram with these counts of cells. Buckets are listed in spans without
// gaps, and each count is the difference to the one before.
func (c *cells) addNative(out *dto.Histogram, counts []uint64) {
	native := make([]uint64, c.last+1)
	for i, n := range counts {
		native[c.native[i]] += n
	}
	out.Schema, out.ZeroThreshold, out.ZeroCount = ptr(int32(schema)), ptr(math.Ldexp(1, c.low)), &native[0]
	const shortGap = 2 // a gap that is shorter costs more than the zeros in it
	var span *dto.BucketSpan
	next, before := int32(0), int64(0) // the index after the last one listed, and its count
	list := func(n int) {
		out.PositiveDelta = append(out.PositiveDelta, int64(native[n])-before)
		before = int64(native[n])
		*span.Length++
	}
	last := 0 // the native bucket that was listed last
	for n := 1; n < len(native); n++ {
		if native[n] == 0 {
			continue
		}
		if span == nil || n-last-1 > shortGap {
			index := int32(c.low)<<schema + int32(n)
			span = &dto.BucketSpan{Offset: ptr(index - next), Length: ptr(uint32(0))}
			out.PositiveSpan = append(out.PositiveSpan, span)
		} else {
			for gap := last + 1; gap < n; gap++ {
				list(gap)
			}
		}
		list(n)
		last, next = n, int32(c.low)<<schema+int32(n)+1
	}
	if len(out.PositiveSpan) == 0 {
		out.PositiveSpan = []*dto.BucketSpan{{Offset: ptr(int32(0)), Length: ptr(uint32(0))}} // says that it is a native histogram
	}
}

// exemplar returns a Call as an exemplar, or nil for none.
func (c *cells) exemplar(call *Call) *dto.Exemplar {
	if call.At.IsZero() {
		return nil
	}
	e := &dto.Exemplar{
		Value: ptr(float64(call.Value) / c.unit), Timestamp: timestamppb.New(call.At),
		Label: []*dto.LabelPair{labelPair("xid", fmt.Sprintf("%#08x", call.XID))},
	}
	if call.UpstreamXID != 0 {
		e.Label = append(e.Label, labelPair("upstream_xid", fmt.Sprintf("%#08x", call.UpstreamXID)))
	}
	return e
}

func labelPair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

func ptr[T any](v T) *T { return &v }

// now is the time at which a series is made.
func now() *timestamppb.Timestamp { return timestamppb.New(time.Now()) }
