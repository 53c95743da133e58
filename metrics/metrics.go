// Package metrics counts. Every series is resolved once, at start-up, to a
// value whose methods are a few nanoseconds and take no lock; Prometheus reads
// the values when it scrapes. A nil *Registry hands out nil values, and methods
// of nil values do nothing, so that code under test needs no registry.
package metrics

import (
	"math"
	"net/http"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Prefix starts the name of every metric.
const Prefix = "rdmabridge_"

// A Counter only grows.
type Counter struct{ v atomic.Uint64 }

// Inc adds one.
func (c *Counter) Inc() { c.Add(1) }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if c != nil {
		c.v.Add(n)
	}
}

// Value is the count so far.
func (c *Counter) Value() uint64 {
	if c == nil {
		return 0
	}
	return c.v.Load()
}

// A Gauge goes up and down.
type Gauge struct{ v atomic.Int64 }

// Add adds n, which may be negative.
func (g *Gauge) Add(n int64) {
	if g != nil {
		g.v.Add(n)
	}
}

// Set replaces the value.
func (g *Gauge) Set(n int64) {
	if g != nil {
		g.v.Store(n)
	}
}

// Value is the value now.
func (g *Gauge) Value() int64 {
	if g == nil {
		return 0
	}
	return g.v.Load()
}

// A Histogram counts observations, in nanoseconds, octets or the like, by
// upper bound.
type Histogram struct {
	bounds []uint64 // ascending
	unit   float64  // exported value = observed value / unit
	counts []atomic.Uint64
	sum    atomic.Uint64
}

// Observe counts v.
func (h *Histogram) Observe(v uint64) {
	if h == nil {
		return
	}
	i := sort.Search(len(h.bounds), func(i int) bool { return v <= h.bounds[i] })
	h.counts[i].Add(1)
	h.sum.Add(v)
}

// LatencyBounds are the upper bounds, in nanoseconds, of histograms of time.
var LatencyBounds = []uint64{
	50e3, 100e3, 250e3, 500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 500e6, 1e9, 2500e6, 5e9, 10e9, 30e9, 60e9,
}

// A Registry is where series are made and read. Whoever makes a series that is
// there already gets that one, and it goes on: what a reload takes away and another
// brings back, a listener or an upstream of one name, counts on. A function takes
// the place of the one before.
type Registry struct {
	p *prometheus.Registry

	mu   sync.Mutex // guards made; held while a series is registered
	made map[string]any
}

// New returns a Registry that also exports Go runtime and process metrics.
func New() *Registry {
	p := prometheus.NewRegistry()
	p.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Registry{p: p, made: make(map[string]any)}
}

// once returns the series that was made under name and labels, or makes it. Two kinds
// of one name are a bug.
func once[T any](r *Registry, name string, labels []string, make func() (T, prometheus.Collector)) (made T, first bool) {
	key := name + "\x00" + strings.Join(labels, "\x00")
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.made[key]; ok {
		return old.(T), false
	}
	made, c := make()
	r.p.MustRegister(c)
	r.made[key] = made
	return made, true
}

// Counter makes the series name{labels}, labels being name, value, name,
// value... The name goes without Prefix and ends in _total.
func (r *Registry) Counter(name, help string, labels ...string) *Counter {
	if r == nil {
		return nil
	}
	c, _ := once(r, name, labels, func() (*Counter, prometheus.Collector) {
		c := &Counter{}
		return c, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: Prefix + name, Help: help, ConstLabels: pairs(labels),
		}, func() float64 { return float64(c.v.Load()) })
	})
	return c
}

// Gauge makes the series name{labels}.
func (r *Registry) Gauge(name, help string, labels ...string) *Gauge {
	if r == nil {
		return nil
	}
	g, _ := once(r, name, labels, func() (*Gauge, prometheus.Collector) {
		g := &Gauge{}
		return g, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: Prefix + name, Help: help, ConstLabels: pairs(labels),
		}, func() float64 { return float64(g.v.Load()) })
	})
	return g
}

// GaugeFunc makes the series name{labels}, whose value is asked for at each
// scrape. f is called on any goroutine.
func (r *Registry) GaugeFunc(name, help string, f func() float64, labels ...string) {
	if r == nil {
		return
	}
	r.function(name, labels, f, func(value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: Prefix + name, Help: help, ConstLabels: pairs(labels),
		}, value)
	})
}

// A function is one that may be replaced.
type function struct {
	f atomic.Pointer[func() float64]
}

func (v *function) value() float64 { return (*v.f.Load())() }

// function makes the series name{labels} with collector, or gives the one there is the
// value f from now on.
func (r *Registry) function(name string, labels []string, f func() float64, collector func(value func() float64) prometheus.Collector) {
	v, first := once(r, name, labels, func() (*function, prometheus.Collector) {
		v := &function{}
		v.f.Store(&f)
		return v, collector(v.value)
	})
	if !first {
		v.f.Store(&f)
	}
}

// CounterFunc is GaugeFunc for a value that only grows.
func (r *Registry) CounterFunc(name, help string, f func() float64, labels ...string) {
	if r == nil {
		return
	}
	r.function(name, labels, f, func(value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: Prefix + name, Help: help, ConstLabels: pairs(labels),
		}, value)
	})
}

// Histogram makes the series name{labels} with the upper bounds given, in the
// unit that Observe takes; scale turns that unit into the exported base unit
// (1e-9 for nanoseconds to seconds).
func (r *Registry) Histogram(name, help string, bounds []uint64, scale float64, labels ...string) *Histogram {
	if r == nil {
		return nil
	}
	// Dividing by 1e9 gives the nearest float to a bound, and le="1e-06".
	// Multiplying by 1e-9, which is no exact float, gives 1.0000000000000002e-06.
	unit := 1 / scale
	if r := math.Round(unit); r > 0 && math.Abs(unit-r) < 1e-6*r {
		unit = r
	}
	h, _ := once(r, name, labels, func() (*Histogram, prometheus.Collector) {
		h := &Histogram{bounds: bounds, unit: unit, counts: make([]atomic.Uint64, len(bounds)+1)}
		return h, &histogramCollector{h: h, desc: prometheus.NewDesc(Prefix+name, help, nil, pairs(labels))}
	})
	return h
}

// Handler serves the text format.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.p, promhttp.HandlerOpts{})
}

type histogramCollector struct {
	h    *Histogram
	desc *prometheus.Desc
}

func (c *histogramCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *histogramCollector) Collect(ch chan<- prometheus.Metric) {
	buckets := make(map[float64]uint64, len(c.h.bounds))
	var n uint64
	for i, b := range c.h.bounds {
		n += c.h.counts[i].Load()
		buckets[float64(b)/c.h.unit] = n
	}
	n += c.h.counts[len(c.h.bounds)].Load()
	ch <- prometheus.MustNewConstHistogram(c.desc, n, float64(c.h.sum.Load())/c.h.unit, buckets)
}

// Copied makes the series of octets of messages that stage copies from one place
// to another in this process: tcp, iwarp, requester or responder. name is the
// listener's or the upstream's. Kernel copies, to and from sockets, do not count.
// Long payload is copied by no stage, but for what a read brings along with other
// things: the sum over payload carried is what a copy-free path loses.
func Copied(r *Registry, stage, name string) *Counter {
	return r.Counter("copied_bytes_total", copiedHelp, "stage", stage, "name", name)
}

// CopiedFunc is Copied for who counts by itself.
func CopiedFunc(r *Registry, stage, name string, f func() float64) {
	r.CounterFunc("copied_bytes_total", copiedHelp, f, "stage", stage, "name", name)
}

const copiedHelp = "Octets of messages copied within the process, kernel copies not counted."

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
