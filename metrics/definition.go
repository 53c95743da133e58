package metrics

import (
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A Definition says what a metric is. The files of this package that are named after a subject have
// the definitions of all metrics: listeners.go, upstreams.go, operations.go, rdma.go,
// memory.go and process.go.
// docs/metrics.md is generated from them.
type Definition struct {
	Name   string // without the prefix rdmabridge_
	Kind   Kind
	Help   string  // one or two sentences
	Labels []Label // in the order in which a Registry takes their values
	Like   string  // what nfsiostat, mountstats, xprtrdma, HAProxy or Envoy calls it; "" if none of them has it

	scale float64          // an exported value is a counted one times scale, such as 1e-9 for nanoseconds; 0 is 1
	cells *cells           // of a histogram
	desc  *prometheus.Desc // without the labels, which each series has
}

// A Kind is the type of a metric.
type Kind string

const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
)

// A Label divides a metric into series.
type Label struct {
	Name   string
	Help   string
	Values []Value // nil if they are not known beforehand
}

// A Value is one value of a Label.
type Value struct{ Name, Help string }

// The three kinds of definitions. Each fits only the methods of a Registry that are for its kind.
type (
	CounterDef   struct{ *Definition }
	GaugeDef     struct{ *Definition }
	HistogramDef struct{ *Definition }
)

// all has every definition. Only the functions below append to it, while the package is initialised.
var all []*Definition

// All returns every definition, in the order of the names.
func All() []*Definition {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *Definition) int { return strings.Compare(a.Name, b.Name) })
	return sorted
}

func counter(d Definition) CounterDef { return CounterDef{define(d, KindCounter)} }
func gauge(d Definition) GaugeDef     { return GaugeDef{define(d, KindGauge)} }

// nanoseconds defines a counter that counts nanoseconds and exports seconds.
func nanoseconds(d Definition) CounterDef {
	d.scale = 1e-9
	return counter(d)
}

// gaugeOfNanoseconds defines a gauge that is set in nanoseconds and exports seconds.
func gaugeOfNanoseconds(d Definition) GaugeDef {
	d.scale = 1e-9
	return gauge(d)
}

// duration defines a histogram of times that are observed in nanoseconds.
func duration(d Definition) HistogramDef {
	d.scale = 1e-9
	d.cells = newCells(LatencyBounds, d.unit())
	return HistogramDef{define(d, KindHistogram)}
}

func define(d Definition, k Kind) *Definition {
	d.complete(k)
	all = append(all, &d)
	return &d
}

func (d *Definition) complete(k Kind) {
	d.Kind = k
	d.desc = prometheus.V2.NewDesc(d.FullName(), d.Help, prometheus.UnconstrainedLabels(nil), nil, prometheus.WithUnit(d.Unit()))
}

// Unit returns the unit of the values: bytes, seconds, or "" for a number of things.
func (d *Definition) Unit() string {
	for _, unit := range []string{"bytes", "seconds"} {
		if strings.HasSuffix(strings.TrimSuffix(d.Name, "_total"), "_"+unit) {
			return unit
		}
	}
	return ""
}

// unit returns what divides a counted value to get the exported one. Dividing by 1e9 gives the float that
// is nearest to a bound, and le="1e-06". Multiplying by 1e-9, which is no exact float, gives
// 1.0000000000000002e-06.
func (d *Definition) unit() float64 {
	if d.scale == 0 {
		return 1
	}
	unit := 1 / d.scale
	if r := math.Round(unit); r > 0 && math.Abs(unit-r) < 1e-6*r {
		unit = r
	}
	return unit
}

// FullName returns the name with the prefix.
func (d *Definition) FullName() string { return prefix + d.Name }

// The labels that many metrics have.
var (
	listenerLabel = Label{Name: "listener", Help: "the listener's name in the configuration"}
	upstreamLabel = Label{Name: "upstream", Help: "the upstream's name in the configuration"}
)

var (
	ofListener = []Label{listenerLabel}
	ofUpstream = []Label{upstreamLabel}
)

// listenerAnd returns the labels of a metric of listeners that has one more.
func listenerAnd(more ...Label) []Label { return append([]Label{listenerLabel}, more...) }

// upstreamAnd returns the labels of a metric of upstreams that has one more.
func upstreamAnd(more ...Label) []Label { return append([]Label{upstreamLabel}, more...) }
