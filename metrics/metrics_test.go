package metrics

import (
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func scrape(t *testing.T, r *Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("scrape: %d, %v", w.Code, err)
	}
	return string(b)
}

// aCounter, aGauge and aHistogram define metrics that are not in the table.
func aCounter(name string, labels ...string) CounterDef {
	return CounterDef{aDefinition(name, KindCounter, labels)}
}

func aGauge(name string, labels ...string) GaugeDef {
	return GaugeDef{aDefinition(name, KindGauge, labels)}
}

func aHistogram(name string, bounds []uint64, scale float64, labels ...string) HistogramDef {
	d := aDefinition(name, KindHistogram, labels)
	d.scale = scale
	d.cells = newCells(bounds, d.unit())
	return HistogramDef{d}
}

func aDefinition(name string, k Kind, labels []string) *Definition {
	d := &Definition{Name: name, Help: "A metric of a test."}
	for _, l := range labels {
		d.Labels = append(d.Labels, Label{Name: l})
	}
	d.complete(k)
	return d
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+text, "\n"+l+"\n") {
			t.Errorf("scrape lacks %q", l)
		}
	}
}

func TestSeries(t *testing.T) {
	r := New()
	a := r.Counter(aCounter("things_total", "kind", "side"), "a", "tcp")
	b := r.Counter(aCounter("things_total", "kind", "side"), "b", "tcp")
	a.Inc()
	a.Add(41)
	b.Add(7)
	g := r.Gauge(aGauge("level"))
	g.Set(10)
	g.Add(-13)
	r.GaugeFunc(aGauge("asked", "x"), func() float64 { return 1.5 }, "y")
	r.CounterFunc(aCounter("asked_total"), func() float64 { return 2 })
	if a.Value() != 42 || g.Value() != -3 {
		t.Errorf("values %d %d, want 42 -3", a.Value(), g.Value())
	}
	wantLines(
		t, scrape(t, r),
		"# TYPE rdmabridge_things_total counter",
		`rdmabridge_things_total{kind="a",side="tcp"} 42`,
		`rdmabridge_things_total{kind="b",side="tcp"} 7`,
		"# TYPE rdmabridge_level gauge",
		"rdmabridge_level -3",
		`rdmabridge_asked{x="y"} 1.5`,
		"rdmabridge_asked_total 2",
	)
	if !strings.Contains(scrape(t, NewForProcess()), "go_goroutines ") {
		t.Error("scrape lacks the Go runtime's metrics")
	}
}

// A bucket counts the values up to its bound, and the last one counts all others.
func TestHistogram(t *testing.T) {
	r := New()
	h := r.Histogram(aHistogram("wait_seconds", []uint64{1e3, 1e6, 1e9}, 1e-9, "side"), "tcp")
	for _, v := range []uint64{0, 1e3, 1e3 + 1, 1e9, 1e9 + 1, 5e9} {
		h.Observe(v)
	}
	wantLines(
		t, scrape(t, r),
		"# TYPE rdmabridge_wait_seconds histogram",
		`rdmabridge_wait_seconds_bucket{side="tcp",le="1e-06"} 2`,
		`rdmabridge_wait_seconds_bucket{side="tcp",le="0.001"} 3`,
		`rdmabridge_wait_seconds_bucket{side="tcp",le="1"} 4`,
		`rdmabridge_wait_seconds_bucket{side="tcp",le="+Inf"} 6`,
		`rdmabridge_wait_seconds_sum{side="tcp"} 7.000002002`,
		`rdmabridge_wait_seconds_count{side="tcp"} 6`,
	)
}

// A nil Registry returns nil values, whose methods do nothing.
func TestNil(t *testing.T) {
	var r *Registry
	c, g, h := r.Counter(aCounter("a_total")), r.Gauge(aGauge("b")), r.Histogram(aHistogram("c", LatencyBounds, 1e-9))
	r.GaugeFunc(aGauge("d"), func() float64 { return 0 })
	r.CounterFunc(aCounter("e"), func() float64 { return 0 })
	c.Inc()
	g.Add(1)
	g.Set(1)
	h.Observe(1)
	if c.Value() != 0 || g.Value() != 0 {
		t.Errorf("nil values count: %d %d", c.Value(), g.Value())
	}
}

func TestConcurrent(t *testing.T) {
	r := New()
	c, h := r.Counter(aCounter("n_total")), r.Histogram(aHistogram("h", []uint64{10}, 1))
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range uint64(1000) {
				c.Inc()
				h.Observe(i % 20)
			}
		}()
	}
	scrape(t, r)
	wg.Wait()
	wantLines(t, scrape(t, r), "rdmabridge_n_total 4000", `rdmabridge_h_bucket{le="10"} 2200`, "rdmabridge_h_count 4000")
}

func TestWrongLabels(t *testing.T) {
	defer func() {
		if s, _ := recover().(string); !strings.HasPrefix(s, "BUG:") {
			t.Errorf("recovered %q, want BUG:", s)
		}
	}()
	New().Counter(aCounter("n_total", "kind"))
}

func TestAllocs(t *testing.T) {
	r := New()
	c, g, h := r.Counter(aCounter("n_total")), r.Gauge(aGauge("g")), r.Histogram(aHistogram("h", LatencyBounds, 1e-9))
	if n := testing.AllocsPerRun(100, func() {
		c.Inc()
		g.Add(1)
		h.Observe(1e6)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// A series that is made twice is one series and keeps its value.
func TestAgain(t *testing.T) {
	r := New()
	a, b := r.Counter(aCounter("again_total", "listener"), "x"), r.Counter(aCounter("again_total", "listener"), "x")
	other := r.Counter(aCounter("again_total", "listener"), "y")
	a.Inc()
	b.Inc()
	if a.Value() != 2 || other.Value() != 0 {
		t.Errorf("made twice, the series has %d, another %d; want 2 and 0", a.Value(), other.Value())
	}
	if g := r.Gauge(aGauge("again")); g != r.Gauge(aGauge("again")) {
		t.Error("two gauges of one name")
	}
	if h := r.Histogram(aHistogram("again_seconds", LatencyBounds, 1e-9)); h != r.Histogram(aHistogram("again_seconds", LatencyBounds, 1e-9)) {
		t.Error("two histograms of one name")
	}
	r.GaugeFunc(aGauge("asked"), func() float64 { return 1 })
	r.GaugeFunc(aGauge("asked"), func() float64 { return 2 })
	r.CounterFunc(aCounter("asked_total"), func() float64 { return 3 })
	r.CounterFunc(aCounter("asked_total"), func() float64 { return 4 })
	wantLines(t, scrape(t, r), "rdmabridge_asked 2", "rdmabridge_asked_total 4", `rdmabridge_again_total{listener="x"} 2`)
}

// What several loops count, each in a part of its own, is exported as one series.
func TestLocal(t *testing.T) {
	r := New()
	arranged := 0
	local := func() *Registry { return r.Local(func() { arranged++ }) }
	loops := []*Registry{local(), local()}
	count := func(r *Registry, n uint64) {
		r.Counter(aCounter("calls_total", "listener"), "x").Add(n)
		r.Histogram(aHistogram("wait_seconds", []uint64{10}, 1)).Observe(n)
	}
	count(loops[0], 1) // the first to make the series
	count(r, 10)
	count(loops[1], 100)
	count(loops[1], 1000) // made again, as by a reload
	loops[0].Gauge(aGauge("level")).Add(5)
	loops[1].Gauge(aGauge("level")).Add(-2)
	wantLines(t, scrape(t, r), `rdmabridge_calls_total{listener="x"} 10`)
	for _, l := range loops {
		l.Publish()
	}
	if arranged != 2 {
		t.Errorf("two loops that have counted called arrange %d times, want 2", arranged)
	}
	wantLines(
		t, scrape(t, r),
		`rdmabridge_calls_total{listener="x"} 1111`,
		`rdmabridge_wait_seconds_bucket{le="10"} 2`,
		"rdmabridge_wait_seconds_sum 1111",
		"rdmabridge_wait_seconds_count 4",
		"rdmabridge_level 3",
	)
	whole := r.Counter(aCounter("calls_total", "listener"), "x")
	if whole.Value() != 1111 {
		t.Errorf("the counter has %d, want the sum of its parts, 1111", whole.Value())
	}
	a, b := loops[0].Counter(aCounter("calls_total", "listener"), "x"), loops[1].Counter(aCounter("calls_total", "listener"), "x")
	if a == whole || a == b || a != loops[0].Counter(aCounter("calls_total", "listener"), "x") {
		t.Error("each loop should have a part of its own, the same each time")
	}
	if apart := max(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b))) - min(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b))); apart < cacheLines {
		t.Errorf("the parts of two loops are %d octets apart, want %d or more", apart, cacheLines)
	}
	var none *Registry
	if none.Local(nil) != nil {
		t.Error("the nil Registry has a Local that is not nil")
	}
}

// Loops may make parts and count in them while others scrape.
func TestLocalConcurrent(t *testing.T) {
	r := New()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			l := r.Local(func() {})
			for i := range uint64(1000) {
				l.Counter(aCounter("n_total")).Inc()
				l.Histogram(aHistogram("h", []uint64{10}, 1)).Observe(i % 20)
				if i%10 == 9 {
					l.Publish()
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() { scrape(t, r) })
	}
	wg.Wait()
	wantLines(t, scrape(t, r), "rdmabridge_n_total 4000", `rdmabridge_h_bucket{le="10"} 2200`, "rdmabridge_h_count 4000")
}

func BenchmarkObserve(b *testing.B) {
	h := New().Histogram(aHistogram("h", LatencyBounds, 1e-9))
	for v := uint64(1); b.Loop(); v = v*3 + 1 {
		h.Observe(v & (1<<30 - 1))
	}
}

// TestForget: a series that is forgotten is not exported, and begins at 0 when it is made again.
func TestForget(t *testing.T) {
	r := New()
	loop := r.Local(func() {})
	scrape := func() string {
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	make := func(r *Registry, upstream string) *Counter {
		r.Gauge(aGauge("up", "upstream"), upstream).Set(1)
		r.Histogram(aHistogram("seconds", []uint64{1}, 1, "upstream", "kind"), upstream, "k").Observe(1)
		r.GaugeFunc(aGauge("now", "upstream"), func() float64 { return 1 }, upstream)
		return r.Counter(aCounter("calls_total", "upstream"), upstream)
	}
	for _, reg := range []*Registry{r, loop} {
		make(reg, "a").Inc()
		make(reg, "b").Inc()
	}
	r.Counter(aCounter("calls_of_listeners_total", "listener"), "a").Inc()
	loop.Publish()
	r.Forget("upstream", "a")
	r.Forget("upstream", "b", "kind", "k")
	r.Forget("upstream", "c")
	out := scrape()
	for want, n := range map[string]int{`upstream="a"`: 0, `listener="a"`: 1, `calls_total{upstream="b"} 2`: 1, `seconds`: 0, `up{upstream="b"}`: 1} {
		if got := strings.Count(out, want); got != n {
			t.Errorf("%d of %s, want %d in\n%s", got, want, n, out)
		}
	}
	c := make(loop, "a")
	c.Add(5)
	loop.Publish()
	if out := scrape(); !strings.Contains(out, `calls_total{upstream="a"} 5`) {
		t.Errorf("made again:\n%s", out)
	}
	var none *Registry
	none.Forget("upstream", "a")
}
