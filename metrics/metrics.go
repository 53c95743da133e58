// Package metrics counts events for Prometheus. The code that counts resolves each series
// once, at start-up, to a value whose methods take a few nanoseconds and no lock.
// Prometheus reads the values when it scrapes.
//
// A nil *Registry returns nil values, and the methods of nil values do nothing, so that
// tests need no registry.
package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
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
func (c *Counter) Inc() {
	if c != nil && c.pending != 0 { // of a loop, and arranged for: most calls
		c.pending++
		return
	}
	c.Add(1)
}

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

// Reach makes the count n, unless it is more already. It is for counts that are kept elsewhere.
func (c *Counter) Reach(n uint64) {
	if c == nil {
		return
	}
	for {
		old := c.v.Load()
		if n <= old || c.v.CompareAndSwap(old, n) {
			return
		}
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
	exported *prometheus.Registry   // collects the series, and what NewForProcess adds
	before   atomic.Pointer[func()] // nil for none

	mu     sync.Mutex // guards the rest; a leaf, held while a series is made
	made   map[string]*madeSeries
	sorted []*madeSeries                // as the library sorts them, so that it need not at each scrape
	pairs  map[[2]string]*dto.LabelPair // the labels of series, by name and value
	locals []*parts                     // of all Registries that Local has returned
}

// New returns a Registry without series.
func New() *Registry {
	s := &series{exported: prometheus.NewRegistry(), made: make(map[string]*madeSeries), pairs: make(map[[2]string]*dto.LabelPair)}
	// The library asks the collector for its metrics now. It has none, and may have any later.
	s.exported.MustRegister(prometheus.CollectorFunc(s.collect))
	return &Registry{series: s}
}

// NewForProcess returns a Registry that exports the metrics of the Go runtime and of the
// process. These read /proc at each scrape.
func NewForProcess() *Registry {
	r := New()
	r.exported.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// BeforeGather has f called at the beginning of each scrape, on any goroutine and several times at once.
// It may make and set series.
func (r *Registry) BeforeGather(f func()) {
	if r != nil {
		r.before.Store(&f)
	}
}

// A madeSeries is one series of a Registry.
type madeSeries struct {
	def     *Definition
	values  []string // of the labels
	labels  []*dto.LabelPair
	value   any // a *Counter, *Gauge, *Histogram or *function
	created time.Time
	given   atomic.Pointer[constant] // what the last scrape got; nil before the first one
}

// once returns the series that d defines with these values of its labels, and makes it first if there is
// none. The same definition for two kinds of series is a bug.
func once[T any](r *Registry, d *Definition, values []string, make func() T) (made T, first bool) {
	if len(values) != len(d.Labels) {
		panic("BUG: metrics: wrong number of label values for " + d.Name)
	}
	key := seriesKey(d, values)
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.made[key]; ok {
		return old.value.(T), false
	}
	s := &madeSeries{def: d, values: slices.Clone(values), created: time.Now()}
	for i, v := range values {
		s.labels = append(s.labels, r.pair(d.Labels[i].Name, v))
	}
	slices.SortFunc(s.labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	made = make()
	s.value = made
	r.made[key] = s
	i, _ := slices.BinarySearchFunc(r.sorted, s, compareSeries)
	r.sorted = slices.Insert(r.sorted, i, s)
	return made, true
}

func compareSeries(a, b *madeSeries) int {
	return cmp.Or(strings.Compare(a.def.Name, b.def.Name), slices.CompareFunc(a.labels, b.labels, func(a, b *dto.LabelPair) int {
		return strings.Compare(a.GetValue(), b.GetValue())
	}))
}

// pair returns a label. Series share those that are equal: a scrape then reads less memory. r.mu is held.
func (r *series) pair(name, value string) *dto.LabelPair {
	key := [2]string{name, value}
	if r.pairs[key] == nil {
		value = strings.ToValidUTF8(value, "\uFFFD")
		r.pairs[key] = &dto.LabelPair{Name: &name, Value: &value}
	}
	return r.pairs[key]
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
	for _, s := range r.made {
		if s.has(labels) {
			r.end(s)
		}
	}
}

// End ends the series that d defines with these values of its labels, as Forget does.
func (r *Registry) End(d *Definition, values ...string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.made[seriesKey(d, values)]; ok {
		r.end(s)
	}
}

// end drops a series. r.mu is held.
func (r *Registry) end(s *madeSeries) {
	delete(r.made, seriesKey(s.def, s.values))
	i := slices.Index(r.sorted, s)
	r.sorted = slices.Delete(r.sorted, i, i+1)
	clear(r.pairs) // no other series may need those of s
	for _, p := range r.locals {
		p.forget(s.value)
	}
}

func seriesKey(d *Definition, values []string) string {
	return d.Name + "\x00" + strings.Join(values, "\x00")
}

// has reports whether s has these labels, which alternate between names and values.
func (s *madeSeries) has(labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		n := slices.IndexFunc(s.def.Labels, func(l Label) bool { return l.Name == labels[i] })
		if n < 0 || s.values[n] != labels[i+1] {
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
	c, _ := once(r, d.Definition, values, func() *Counter { return &Counter{} })
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
	g, _ := once(r, d.Definition, values, func() *Gauge { return &Gauge{} })
	return g
}

// Histogram returns the histogram that d defines, with these values of its labels.
func (r *Registry) Histogram(d HistogramDef, values ...string) *Histogram {
	if r == nil {
		return nil
	}
	h, _ := once(r, d.Definition, values, func() *Histogram { return newHistogram(d.Definition) })
	if r.parts == nil {
		return h
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parts.histogram(h)
}

// A function is a series whose value is the result of a function that can be replaced.
type function struct {
	f atomic.Pointer[func() float64]
}

func (v *function) value() float64 { return (*v.f.Load())() }

// Truth is the value of a gauge that says whether something is so: 1 or 0.
func Truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// GaugeFunc makes a gauge that calls f at each scrape, on any goroutine.
func (r *Registry) GaugeFunc(d GaugeDef, f func() float64, values ...string) {
	r.function(d.Definition, f, values)
}

// CounterFunc does what GaugeFunc does, for a value that only grows.
func (r *Registry) CounterFunc(d CounterDef, f func() float64, values ...string) {
	r.function(d.Definition, f, values)
}

// function makes a series of f. If the series exists already, f replaces its function.
func (r *Registry) function(d *Definition, f func() float64, values []string) {
	if r == nil {
		return
	}
	v, first := once(r, d, values, func() *function {
		v := &function{}
		v.f.Store(&f)
		return v
	})
	if !first {
		v.f.Store(&f)
	}
}
