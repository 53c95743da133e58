package metrics

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protojson"
)

// TestExposition: what a scraper gets of each kind of series, octet for octet, in the text format and in the binary
// one. The latter is written as JSON, a metric on a line.
func TestExposition(t *testing.T) {
	var text, binary string
	synctest.Test(t, func(t *testing.T) { // so that the clock is known
		r := exposed()
		text, _ = scrapeAs(t, r, askText)
		binary = asJSON(t, families(t, r))
	})
	for file, got := range map[string]string{"testdata/exposition.txt": text, "testdata/exposition.json": binary} {
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("not what %s has (go test ./metrics -run TestExposition -update):\n%s", file, got)
		}
	}
}

// exposed returns a registry with series of each kind.
func exposed() *Registry {
	r := New()
	loop := r.Local(func() {})
	calls := aCounter("calls_total", "listener", "result")
	loop.Counter(calls, "nfs", "replied").Add(3)
	r.Counter(calls, "nfs", "replied").Add(1<<53 - 4)
	r.Counter(calls, "nfs", "local")
	r.Counter(calls, "a \"quoted\\\nname", "replied").Inc()
	r.Counter(calls, "no UTF-8: \xff", "é").Inc()
	time.Sleep(1500 * time.Millisecond)
	waited := aCounter("waited_seconds_total")
	waited.scale = 1e-9
	r.Counter(waited).Add(1_500_000_001)
	r.CounterFunc(aCounter("asked_total"), func() float64 { return 1e21 })
	r.GaugeFunc(aGauge("asked"), func() float64 { return 0.1 })
	r.Gauge(aGauge("used_bytes", "account"), "replies").Set(-7)
	r.Gauge(aGauge("used_bytes", "account"), "calls").Add(1 << 40)

	seconds := aHistogram("seconds", []uint64{1e6, 10e6, 1e9}, 1e-9, "operation")
	read := loop.Histogram(seconds, "READ")
	for i, v := range []uint64{0, 1, 900e3, 1e6, 1e6 + 1, 11e6, 12e6, 16e6, 500e6, 2e9, 1e15} {
		time.Sleep(time.Millisecond)
		read.ObserveCalls(v, uint64(1+i%3), uint32(0x10+i), uint32(i%2*0xabc))
		loop.Publish()
	}
	r.Histogram(seconds, "WRITE")           // without a value
	r.Histogram(seconds, "NULL").Observe(0) // in the zero bucket
	loop.Publish()
	return r
}

// asJSON writes families with the labels of exemplars in order, which the library does not keep.
func asJSON(t *testing.T, families map[string]*dto.MetricFamily) string {
	var b strings.Builder
	line := func(begin string, m []byte, err error) {
		t.Helper()
		var compact bytes.Buffer
		if err != nil || json.Compact(&compact, m) != nil { // protojson has spaces at random
			t.Fatal(err)
		}
		b.WriteString(begin + compact.String() + "\n")
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		metrics := f.Metric
		f.Metric = nil
		head, err := protojson.Marshal(f)
		line("", head, err)
		for _, m := range metrics {
			all := m.GetHistogram().GetExemplars()
			for _, b := range m.GetHistogram().GetBucket() {
				all = append(all, b.GetExemplar())
			}
			for _, e := range all {
				slices.SortFunc(e.GetLabel(), func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
			}
			one, err := protojson.Marshal(m)
			line("\t", one, err)
		}
	}
	return b.String()
}
