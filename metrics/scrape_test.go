package metrics

import (
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wide returns a registry with the series of n upstreams, each used through one listener for ten
// operations, and a function that counts a Call in each.
func wide(n int) (*Registry, func(call uint32)) {
	r := New()
	loop := r.Local(func() {})
	type series struct {
		counters   []*Counter
		histograms []*Histogram
	}
	var all series
	for u := range n {
		upstream := fmt.Sprintf("upstream%d", u)
		for _, d := range All() {
			values := make([]string, len(d.Labels))
			for i, l := range d.Labels {
				switch {
				case l.Name == "listener":
					values[i] = "nfs"
				case l.Name == "upstream":
					values[i] = upstream
				case len(l.Values) > 0:
					values[i] = l.Values[0].Name
				}
			}
			operations := 1
			if len(d.Labels) > 4 && d.Labels[4].Name == "operation" {
				operations = 10
			}
			for op := range operations {
				if operations > 1 {
					values[2], values[3], values[4] = "nfs", "3", "OP"+strconv.Itoa(op)
				}
				switch d.Kind {
				case KindCounter:
					all.counters = append(all.counters, loop.Counter(CounterDef{d}, values...))
				case KindGauge:
					r.Gauge(GaugeDef{d}, values...).Set(int64(u))
				case KindHistogram:
					all.histograms = append(all.histograms, loop.Histogram(HistogramDef{d}, values...))
				}
			}
		}
	}
	return r, func(call uint32) {
		for _, c := range all.counters {
			c.Inc()
		}
		for i, h := range all.histograms {
			h.ObserveCalls(uint64(1+(int(call)*7919+i*31)%5000)*20e3, 1, call, call+1)
		}
		loop.Publish()
	}
}

// TestScrapes: a bridge with forty upstreams, which have five thousand series, is scraped in each format; as
// often as in a day at 15 s if RDMABRIDGE_SCRAPES is 5760. Its heap does not grow.
func TestScrapes(t *testing.T) {
	const upstreams = 40
	scrapes := 6
	if s, err := strconv.Atoi(os.Getenv("RDMABRIDGE_SCRAPES")); err == nil {
		scrapes = s
	}
	r, count := wide(upstreams)
	handler := r.Handler()
	var octets [3]int
	scrape := func(i int) {
		count(uint32(i))
		for f, accept := range []string{askText, askOpenMetrics, askProtobuf} {
			q := httptest.NewRequest("GET", "/metrics", nil)
			q.Header.Set("Accept", accept)
			w := &counted{ResponseRecorder: httptest.NewRecorder()}
			w.Body = nil
			handler.ServeHTTP(w, q)
			octets[f] = w.n
		}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for i := range 3 { // pools of encoders, exemplars
		scrape(i)
	}
	before, cpu := heap(), cpuTime()
	for i := range scrapes {
		scrape(i + 3)
	}
	cpu = cpuTime() - cpu
	after := heap()
	t.Logf("%d times %d series: %d bytes of text, %d of OpenMetrics, %d of protobuf, %v of processor time for each three; heap %d KiB, then %d KiB",
		scrapes, len(r.made), octets[0], octets[1], octets[2], cpu/time.Duration(scrapes), before>>10, after>>10)
	if after > before+before/20+1<<20 {
		t.Errorf("the heap has grown from %d to %d bytes in %d scrapes", before, after, scrapes)
	}
	for f, n := range octets {
		if n < 1<<18 {
			t.Errorf("format %d has %d bytes", f, n)
		}
	}
	for u := range upstreams {
		r.Forget("upstream", fmt.Sprintf("upstream%d", u))
	}
	for _, s := range r.made {
		if s.has([]string{"upstream", "upstream7"}) {
			t.Errorf("%s%v is left", s.def.Name, s.values)
		}
	}
	if left := heap(); left > before/2 {
		t.Errorf("%d of %d bytes of heap are left without the upstreams", left, before)
	}
	runtime.KeepAlive(r)
	runtime.KeepAlive(count)
}

// counted counts what is written, and drops it.
type counted struct {
	*httptest.ResponseRecorder
	n int
}

func (w *counted) Write(b []byte) (int, error) {
	w.n += len(b)
	return io.Discard.Write(b)
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScrape scrapes 4,600 series, of which all or none have changed since the last scrape.
func BenchmarkScrape(b *testing.B) {
	r, count := wide(32)
	for _, accept := range []struct{ name, accept string }{{"text", askText}, {"openmetrics", askOpenMetrics}, {"protobuf", askProtobuf}} {
		for name, calls := range map[string]uint32{"idle": 0, "busy": 1} {
			b.Run(accept.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for call := uint32(0); b.Loop(); call++ {
					for range calls {
						count(call)
					}
					q := httptest.NewRequest("GET", "/metrics", nil)
					q.Header.Set("Accept", accept.accept)
					w := &counted{ResponseRecorder: httptest.NewRecorder()}
					r.Handler().ServeHTTP(w, q)
				}
			})
		}
	}
}
