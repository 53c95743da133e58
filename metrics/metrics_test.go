package metrics

import (
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
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
	a := r.Counter("things_total", "Things.", "kind", "a", "side", "tcp")
	b := r.Counter("things_total", "Things.", "kind", "b", "side", "tcp")
	a.Inc()
	a.Add(41)
	b.Add(7)
	g := r.Gauge("level", "Level.")
	g.Set(10)
	g.Add(-13)
	r.GaugeFunc("asked", "Asked.", func() float64 { return 1.5 }, "x", "y")
	r.CounterFunc("asked_total", "Asked.", func() float64 { return 2 })
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
	if !strings.Contains(scrape(t, r), "go_goroutines ") {
		t.Error("scrape lacks the Go runtime's metrics")
	}
}

// A bucket counts the values up to its bound, and the last one counts all others.
func TestHistogram(t *testing.T) {
	r := New()
	h := r.Histogram("wait_seconds", "Wait.", []uint64{1e3, 1e6, 1e9}, 1e-9, "side", "tcp")
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
	c, g, h := r.Counter("a_total", ""), r.Gauge("b", ""), r.Histogram("c", "", LatencyBounds, 1e-9)
	r.GaugeFunc("d", "", func() float64 { return 0 })
	r.CounterFunc("e", "", func() float64 { return 0 })
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
	c, h := r.Counter("n_total", "N."), r.Histogram("h", "H.", []uint64{10}, 1)
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

func TestOddLabels(t *testing.T) {
	defer func() {
		if s, _ := recover().(string); !strings.HasPrefix(s, "BUG:") {
			t.Errorf("recovered %q, want BUG:", s)
		}
	}()
	New().Counter("n_total", "N.", "kind")
}

func TestAllocs(t *testing.T) {
	r := New()
	c, g, h := r.Counter("n_total", "N."), r.Gauge("g", "G."), r.Histogram("h", "H.", LatencyBounds, 1e-9)
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
	a, b := r.Counter("again_total", "Again.", "listener", "x"), r.Counter("again_total", "Again.", "listener", "x")
	other := r.Counter("again_total", "Again.", "listener", "y")
	a.Inc()
	b.Inc()
	if a.Value() != 2 || other.Value() != 0 {
		t.Errorf("made twice, the series has %d, another %d; want 2 and 0", a.Value(), other.Value())
	}
	if g := r.Gauge("again", "Again."); g != r.Gauge("again", "Again.") {
		t.Error("two gauges of one name")
	}
	if h := r.Histogram("again_seconds", "Again.", LatencyBounds, 1e-9); h != r.Histogram("again_seconds", "Again.", LatencyBounds, 1e-9) {
		t.Error("two histograms of one name")
	}
	r.GaugeFunc("asked", "Asked.", func() float64 { return 1 })
	r.GaugeFunc("asked", "Asked.", func() float64 { return 2 })
	r.CounterFunc("asked_total", "Asked.", func() float64 { return 3 })
	r.CounterFunc("asked_total", "Asked.", func() float64 { return 4 })
	wantLines(t, scrape(t, r), "rdmabridge_asked 2", "rdmabridge_asked_total 4", `rdmabridge_again_total{listener="x"} 2`)
}

func BenchmarkObserve(b *testing.B) {
	h := New().Histogram("h", "H.", LatencyBounds, 1e-9)
	for v := uint64(1); b.Loop(); v = v*3 + 1 {
		h.Observe(v & (1<<30 - 1))
	}
}
