// Package metrics counts events for Prometheus. The code that counts resolves each series
// once, at start-up, to a value whose methods take a few nanoseconds and no lock.
// Prometheus reads the values when it scrapes.
//
// A nil *Registry returns nil values, and the methods of nil values do nothing, so that
// tests need no registry.
package metrics

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// prefix begins the name of every metric.
const prefix = "rdmabridge_"

// A Counter counts events. It only grows.
type Counter struct {
	v     atomic.Uint64
	parts atomic.Pointer[[]*Counter] // those of the loops: Local

	// Set in the part of a loop only.
	loop    *parts // all parts of the loop
	pending uint64 // counted since Publish; owned by the loop
}

// Inc adds one.
func (c *Counter) Inc() { c.Add(1) }

// Add adds n.
func (c *Counter) Add(n uint64) {
	switch {
	case c == nil || n == 0:
	case c.loop == nil:
		c.v.Add(n)
	default:
		if c.pending == 0 {
			c.loop.arrangeOnce()
			c.loop.countersChanged = append(c.loop.countersChanged, c)
		}
		c.pending += n
	}
}

// Value returns the count so far, with what its parts have published.
func (c *Counter) Value() uint64 {
	if c == nil {
		return 0
	}
	n := c.v.Load()
	for _, part := range loadParts(&c.parts) {
		n += part.v.Load()
	}
	return n
}

// Seconds returns the count so far, in seconds, of a counter that counts nanoseconds.
func (c *Counter) Seconds() float64 { return float64(c.Value()) / 1e9 }

// A Gauge is a number that goes up and down.
type Gauge struct{ v atomic.Int64 }

// Add adds n, which may be negative.
func (g *Gauge) Add(n int64) {
	if g != nil {
		g.v.Add(n)
	}
}

// Set makes n the value.
func (g *Gauge) Set(n int64) {
	if g != nil {
		g.v.Store(n)
	}
}

// Value returns the present value.
func (g *Gauge) Value() int64 {
	if g == nil {
		return 0
	}
	return g.v.Load()
}

// A Histogram counts observed values, such as nanoseconds or octets, in buckets that have
// upper bounds.
type Histogram struct {
	bounds []uint64                     // ascending
	unit   float64                      // exported value = observed value / unit
	counts []atomic.Uint64              // a counter for each bound, one for larger values, and the sum
	parts  atomic.Pointer[[]*Histogram] // those of the loops: Local

	// Set in the part of a loop only.
	loop    *parts   // all parts of the loop
	pending []uint64 // to be added to counts; owned by the loop
	changed bool     // pending is not all zero; owned by the loop
}

// Observe counts v in its bucket.
func (h *Histogram) Observe(v uint64) {
	if h == nil {
		return
	}
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	if h.loop == nil {
		h.counts[i].Add(1)
		h.counts[len(h.counts)-1].Add(v)
		return
	}
	if !h.changed {
		h.changed = true
		h.loop.arrangeOnce()
		h.loop.histogramsChanged = append(h.loop.histogramsChanged, h)
	}
	h.pending[i]++
	h.pending[len(h.pending)-1] += v
}

// Buckets returns the upper bounds of h, in the unit that is exported, and how many values each bucket
// has, and one bucket more for greater values.
func (h *Histogram) Buckets() (bounds []float64, counts []uint64) {
	if h == nil {
		return nil, nil
	}
	for _, b := range h.bounds {
		bounds = append(bounds, float64(b)/h.unit)
	}
	return bounds, h.values()[:len(h.bounds)+1]
}

// values returns the counters and the sum, with those of the parts.
func (h *Histogram) values() []uint64 {
	all := make([]uint64, len(h.counts))
	for _, part := range append([]*Histogram{h}, loadParts(&h.parts)...) {
		for i := range part.counts {
			all[i] += part.counts[i].Load()
		}
	}
	return all
}

// LatencyBounds are the upper bounds of histograms of time, in nanoseconds.
var LatencyBounds = []uint64{
	50e3, 100e3, 250e3, 500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 500e6, 1e9, 2500e6, 5e9, 10e9, 30e9, 60e9,
}

// A Registry makes series and exports them. When a series exists already, its constructor
// returns the existing one, which keeps its value: if one reload removes a listener or an
// upstream and another brings it back, its counters continue. A function replaces the
// function that the series had.
type Registry struct {
	*series
	parts *parts // of one event loop: Local; nil for the others
}

// series are what a Registry and those that its Local has returned have in common.
type series struct {
	p *prometheus.Registry

	mu     sync.Mutex // guards the rest, and is held while a series is registered
	made   map[string]madeSeries
	locals []*parts // of all Registries that Local has returned
}

// New returns a Registry without series.
func New() *Registry {
	return &Registry{series: &series{p: prometheus.NewRegistry(), made: make(map[string]madeSeries)}}
}

// NewForProcess returns a Registry that exports the metrics of the Go runtime and of the
// process. These read /proc at each scrape.
func NewForProcess() *Registry {
	r := New()
	r.p.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// once returns the series with the name and labels, and makes it first if there is none.
// The same name for two kinds of series is a bug.
func once[T any](r *Registry, name string, labels []string, make func() (T, prometheus.Collector)) (made T, first bool) {
	key := name + "\x00" + strings.Join(labels, "\x00")
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.made[key]; ok {
		return old.value.(T), false
	}
	made, c := make()
	r.p.MustRegister(c)
	r.made[key] = madeSeries{made, c, labels}
	return made, true
}

// A madeSeries is one series of a Registry.
type madeSeries struct {
	value     any // a *Counter, *Gauge, *Histogram or *function
	collector prometheus.Collector
	labels    []string
}

// Forget ends the series that have all these labels: what they count has ended, and their last values
// would be exported for ever. Whoever has one of them may count on, unseen. A series that is made
// again begins at 0. The labels alternate between names and values.
func (r *Registry) Forget(labels ...string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, s := range r.made {
		if !s.has(labels) {
			continue
		}
		r.p.Unregister(s.collector)
		delete(r.made, key)
		for _, p := range r.locals {
			p.forget(s.value)
		}
	}
}

func (s *madeSeries) has(labels []string) bool {
	own := pairs(s.labels)
	for name, value := range pairs(labels) {
		if v, ok := own[name]; !ok || v != value {
			return false
		}
	}
	return true
}

// Counter returns the counter that d defines, with these values of its labels.
func (r *Registry) Counter(d CounterDef, values ...string) *Counter {
	if r == nil {
		return nil
	}
	unit := d.unit()
	labels := d.pairs(values)
	c, _ := once(r, d.Name, labels, func() (*Counter, prometheus.Collector) {
		c := &Counter{}
		return c, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: d.FullName(), Help: d.Help, ConstLabels: pairs(labels),
		}, func() float64 { return float64(c.Value()) / unit })
	})
	if r.parts == nil {
		return c
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parts.counter(c)
}

// Gauge returns the gauge that d defines, with these values of its labels.
func (r *Registry) Gauge(d GaugeDef, values ...string) *Gauge {
	if r == nil {
		return nil
	}
	labels := d.pairs(values)
	g, _ := once(r, d.Name, labels, func() (*Gauge, prometheus.Collector) {
		g := &Gauge{}
		return g, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: d.FullName(), Help: d.Help, ConstLabels: pairs(labels),
		}, func() float64 { return float64(g.v.Load()) })
	})
	return g
}

// GaugeFunc makes a gauge that calls f at each scrape, on any goroutine.
func (r *Registry) GaugeFunc(d GaugeDef, f func() float64, values ...string) {
	if r == nil {
		return
	}
	labels := d.pairs(values)
	r.function(d.Definition, labels, f, func(value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: d.FullName(), Help: d.Help, ConstLabels: pairs(labels),
		}, value)
	})
}

// CounterFunc does what GaugeFunc does, for a value that only grows.
func (r *Registry) CounterFunc(d CounterDef, f func() float64, values ...string) {
	if r == nil {
		return
	}
	labels := d.pairs(values)
	r.function(d.Definition, labels, f, func(value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: d.FullName(), Help: d.Help, ConstLabels: pairs(labels),
		}, value)
	})
}

// A function is a series whose value is the result of a function that can be replaced.
type function struct {
	f atomic.Pointer[func() float64]
}

func (v *function) value() float64 { return (*v.f.Load())() }

// function makes a series with collector. If the series exists already, f replaces its function.
func (r *Registry) function(d *Definition, labels []string, f func() float64, collector func(value func() float64) prometheus.Collector) {
	v, first := once(r, d.Name, labels, func() (*function, prometheus.Collector) {
		v := &function{}
		v.f.Store(&f)
		return v, collector(v.value)
	})
	if !first {
		v.f.Store(&f)
	}
}

// Histogram returns the histogram that d defines, with these values of its labels.
func (r *Registry) Histogram(d HistogramDef, values ...string) *Histogram {
	if r == nil {
		return nil
	}
	unit := d.unit()
	labels := d.pairs(values)
	h, _ := once(r, d.Name, labels, func() (*Histogram, prometheus.Collector) {
		h := &Histogram{bounds: d.bounds, unit: unit, counts: make([]atomic.Uint64, len(d.bounds)+2)}
		return h, &histogramCollector{h: h, desc: prometheus.NewDesc(d.FullName(), d.Help, nil, pairs(labels))}
	})
	if r.parts == nil {
		return h
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parts.histogram(h)
}

// Handler returns a handler that serves all series in the text format.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.p, promhttp.HandlerOpts{})
}

type histogramCollector struct {
	h    *Histogram
	desc *prometheus.Desc
}

func (c *histogramCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *histogramCollector) Collect(ch chan<- prometheus.Metric) {
	bounds, values := c.h.bounds, c.h.values()
	buckets := make(map[float64]uint64, len(bounds))
	var n uint64
	for i, b := range bounds {
		n += values[i]
		buckets[float64(b)/c.h.unit] = n
	}
	n += values[len(bounds)]
	ch <- prometheus.MustNewConstHistogram(c.desc, n, float64(values[len(bounds)+1])/c.h.unit, buckets)
}

func pairs(labels []string) prometheus.Labels {
	if len(labels)%2 != 0 {
		panic("BUG: metrics: odd number of label strings")
	}
	m := make(prometheus.Labels, len(labels)/2)
	for i := 0; i < len(labels); i += 2 {
		m[labels[i]] = labels[i+1]
	}
	return m
}
