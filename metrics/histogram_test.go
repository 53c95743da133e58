package metrics

import (
	"io"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// What Prometheus asks for: its text format, OpenMetrics, and its binary format.
const (
	askText        = "text/plain;version=0.0.4"
	askOpenMetrics = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
	askProtobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.9,text/plain;q=0.5"
)

func scrapeAs(t testing.TB, r *Registry, accept string) (body, contentType string) {
	t.Helper()
	q := httptest.NewRequest("GET", "/metrics", nil)
	q.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, q)
	if w.Code != 200 {
		t.Fatalf("scrape: %d, %s", w.Code, w.Body)
	}
	return w.Body.String(), w.Header().Get("Content-Type")
}

// families decodes a scrape in the binary format.
func families(t testing.TB, r *Registry) map[string]*dto.MetricFamily {
	t.Helper()
	body, kind := scrapeAs(t, r, askProtobuf)
	if !strings.HasPrefix(kind, "application/vnd.google.protobuf") {
		t.Fatalf("the scrape is %s", kind)
	}
	d := expfmt.NewDecoder(strings.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim))
	all := make(map[string]*dto.MetricFamily)
	for {
		f := &dto.MetricFamily{}
		if err := d.Decode(f); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[f.GetName()] = f
	}
}

// TestNativeHistogram compares with the histograms of Prometheus' own library.
func TestNativeHistogram(t *testing.T) {
	r := New()
	def := aHistogram("seconds", LatencyBounds, 1e-9)
	bounds := make([]float64, len(LatencyBounds))
	for i, b := range LatencyBounds {
		bounds[i] = float64(b) / 1e9
	}
	theirs := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "seconds", Buckets: bounds, NativeHistogramBucketFactor: 1.2, NativeHistogramZeroThreshold: math.Ldexp(1, def.cells.low),
	})
	loop := r.Local(func() {})
	ours := loop.Histogram(def)
	rng := rand.New(rand.NewPCG(1, 2))
	values := []uint64{0, 1, 500, 1e3, 1e9, 2e9, 4e9, 1e9 / 2, 60e9, 3600e9}
	for _, b := range LatencyBounds {
		values = append(values, b-1, b, b+1)
	}
	for range 100_000 {
		values = append(values, uint64(math.Exp(rng.NormFloat64()*3)*1e6))
	}
	for i, v := range values {
		ours.Observe(v)
		theirs.Observe(float64(v) / 1e9)
		if i%7 == 0 {
			loop.Publish()
		}
	}
	loop.Publish()
	var want dto.Metric
	if err := theirs.Write(&want); err != nil {
		t.Fatal(err)
	}
	got, w := families(t, r)["rdmabridge_seconds"].Metric[0].Histogram, want.Histogram
	if got.GetSampleCount() != w.GetSampleCount() || math.Abs(got.GetSampleSum()-w.GetSampleSum()) > 1e-3 {
		t.Errorf("count and sum %d %v, want %d %v", got.GetSampleCount(), got.GetSampleSum(), w.GetSampleCount(), w.GetSampleSum())
	}
	for i, b := range w.Bucket {
		if g := got.Bucket[i]; g.GetUpperBound() != b.GetUpperBound() || g.GetCumulativeCount() != b.GetCumulativeCount() {
			t.Errorf("classic bucket %v, want %v", g, b)
		}
	}
	if got.GetSchema() != w.GetSchema() || got.GetZeroThreshold() != w.GetZeroThreshold() || got.GetZeroCount() != w.GetZeroCount() {
		t.Errorf("schema %d, zero bucket to %v %d; want %d %v %d", got.GetSchema(), got.GetZeroThreshold(), got.GetZeroCount(), w.GetSchema(), w.GetZeroThreshold(), w.GetZeroCount())
	}
	if g, want := nativeCounts(got), nativeCounts(w); len(g) != len(want) {
		t.Errorf("%d native buckets, want %d", len(g), len(want))
	} else {
		for i, n := range want {
			if g[i] != n {
				t.Errorf("native bucket %d has %d, want %d", i, g[i], n)
			}
		}
	}
}

// nativeCounts returns the counts of native buckets by index, without those that are 0.
func nativeCounts(h *dto.Histogram) map[int32]int64 {
	counts := make(map[int32]int64)
	index, n, d := int32(0), int64(0), h.PositiveDelta
	for _, s := range h.PositiveSpan {
		index += s.GetOffset()
		for range s.GetLength() {
			n += d[0]
			d = d[1:]
			if n != 0 {
				counts[index] = n
			}
			index++
		}
	}
	return counts
}

// TestCells: values beyond what a histogram divides are in its first and last cell.
func TestCells(t *testing.T) {
	c := newCells(LatencyBounds, 1e9)
	if n := len(c.native); n > 200 {
		t.Errorf("%d cells", n)
	}
	last := -1
	for v := uint64(0); v < math.MaxUint64/3; v = v*3/2 + 1 {
		cell := c.of(v)
		if cell < last {
			t.Fatalf("%d is in cell %d, a smaller value in %d", v, cell, last)
		}
		last = cell
		if want := slices.IndexFunc(append(slices.Clone(c.bounds), math.MaxUint64), func(b uint64) bool { return v <= b }); int(c.classic[cell]) != want {
			t.Fatalf("%d is in classic bucket %d, want %d", v, c.classic[cell], want)
		}
	}
	if last != len(c.native)-1 || c.of(math.MaxInt64) != last {
		t.Errorf("the largest values are in cell %d of %d", last, len(c.native))
	}
	defer func() {
		if s, _ := recover().(string); !strings.HasPrefix(s, "BUG:") {
			t.Errorf("bounds that are too near: %q", s)
		}
	}()
	newCells([]uint64{1000, 1001}, 1)
}

// upstreamFirst matches the labels of an exemplar in the other order: the library does not keep theirs.
var upstreamFirst = regexp.MustCompile(`\{(upstream_xid="\w+"),(xid="\w+")\}`)

// TestExemplars: each scrape shows a recent Call of each bucket, where the format has exemplars.
func TestExemplars(t *testing.T) {
	r := New()
	def := aHistogram("seconds", []uint64{1e6, 1e9}, 1e-9, "upstream")
	loop := r.Local(func() {})
	h := loop.Histogram(def, "a")
	observe := func(v uint64, xid uint32) {
		h.ObserveCalls(v, 1, xid, xid+1)
		loop.Publish()
	}
	observe(1e3, 0x10)
	observe(1e3, 0x20) // the scrape wants one of a bucket
	observe(2e9, 0xabcdef01)
	h.Observe(5e8)
	loop.Publish()
	want := []string{
		`rdmabridge_seconds_bucket{upstream="a",le="0.001"} 2 # {xid="0x00000010",upstream_xid="0x00000011"} 1e-06 `,
		`rdmabridge_seconds_bucket{upstream="a",le="1.0"} 3` + "\n",
		`rdmabridge_seconds_bucket{upstream="a",le="+Inf"} 4 # {xid="0xabcdef01",upstream_xid="0xabcdef02"} 2.0 `,
	}
	for range 2 { // an exemplar stays until another replaces it
		body, kind := scrapeAs(t, r, askOpenMetrics)
		if !strings.HasPrefix(kind, "application/openmetrics-text") || !strings.HasSuffix(body, "# EOF\n") {
			t.Errorf("content type %s", kind)
		}
		body = upstreamFirst.ReplaceAllString(body, "{$2,$1}")
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("no %q in\n%s", w, body)
			}
		}
	}
	observe(1e3, 0x30)
	m := families(t, r)["rdmabridge_seconds"].Metric[0]
	if n := len(m.Histogram.Exemplars); n != 2 || !slices.ContainsFunc(m.Histogram.Bucket[0].Exemplar.Label, func(l *dto.LabelPair) bool {
		return l.GetName() == "xid" && l.GetValue() == "0x00000030"
	}) {
		t.Errorf("%d exemplars: %v", n, m.Histogram.Exemplars)
	}
	if age := time.Since(m.Histogram.CreatedTimestamp.AsTime()); age < 0 || age > time.Hour {
		t.Errorf("the series began %v ago", age)
	}
	if body, _ := scrapeAs(t, r, askText); strings.Contains(body, "xid") {
		t.Errorf("exemplars in the text format:\n%s", body)
	}
}

// TestExemplarsConcurrent: loops keep Calls while others scrape.
func TestExemplarsConcurrent(t *testing.T) {
	r := New()
	def := aHistogram("seconds", LatencyBounds, 1e-9)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l := r.Local(func() {})
		h := l.Histogram(def)
		for i := range uint32(20_000) {
			h.ObserveCalls(uint64(i)*1e5, 1, i, 0)
			if i%10 == 9 {
				l.Publish()
			}
		}
	}()
	for {
		select {
		case <-done:
			for i, e := range families(t, r)["rdmabridge_seconds"].Metric[0].Histogram.Bucket {
				if e.Exemplar != nil && e.Exemplar.GetValue() > e.GetUpperBound() {
					t.Errorf("bucket %d has the exemplar %v", i, e.Exemplar)
				}
			}
			return
		default:
			scrapeAs(t, r, askOpenMetrics)
		}
	}
}

func BenchmarkObserveLocal(b *testing.B) {
	r := New().Local(func() {})
	h := r.Histogram(aHistogram("h", LatencyBounds, 1e-9))
	for _, call := range []bool{false, true} {
		b.Run(map[bool]string{false: "value", true: "call"}[call], func(b *testing.B) {
			for i, v := uint64(0), uint64(1); b.Loop(); i++ {
				v = v*6364136223846793005 + 1442695040888963407
				d := 200e3 + v>>44 // 200 µs to 1.2 ms
				if call {
					h.ObserveCalls(d, 1, uint32(i), 0)
				} else {
					h.Observe(d)
				}
				if i%16 == 15 { // a pass has some Calls
					r.Publish()
				}
			}
		})
	}
}
