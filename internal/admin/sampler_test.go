package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func contextWithLocal(r *http.Request, a net.Addr) context.Context {
	return context.WithValue(r.Context(), http.LocalAddrContextKey, a)
}

// A steady bridge answers 100 Calls a second, which take 2 ms each, through each of its upstreams.
type steady struct {
	mu        sync.Mutex // guards the fields below; a leaf
	upstreams []string
	began     time.Time
}

func (s *steady) Document(status.Query) status.Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	n := uint64(100 * now.Sub(s.began).Seconds())
	d := status.Document{Time: now, Process: 1, Listeners: []status.Listener{{Name: "nfs", Clients: 7}}, Memory: status.Memory{Used: 4096}}
	for _, name := range s.upstreams {
		p := status.Phases{Calls: n, Server: float64(n) * 2e-3}
		d.Upstreams = append(d.Upstreams, status.Upstream{Name: name, Phases: p, Credits: status.Credits{Granted: 8, Used: 2, Waiting: 3}})
		d.Operations = append(d.Operations, status.Operation{Listener: "nfs", Upstream: name, Operation: "READ", Calls: n, Phases: p, Statuses: map[string]uint64{status.ClassOK: n - n/10, status.ClassNoEnt: n / 20, status.ClassIO: n / 20}})
		d.Listeners[0].BytesIn += 1000 * n
		d.Listeners[0].BytesOut += 3000 * n
	}
	return d
}

// TestHistory: each point is of five seconds, ten minutes are kept, and upstreams that are gone are gone.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &steady{upstreams: []string{"a", "b"}, began: time.Now()}
		h := NewHandler(Source{Document: b.Document})
		h.Start()
		h.Start()
		defer h.Close()
		synctest.Wait()
		if d, before := h.sampler.view(); len(d.Calls) != 0 || before == nil {
			t.Errorf("at the start the history has %d points", len(d.Calls))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		d, before := h.sampler.view()
		if len(d.Calls) != 12 || d.Step != 5 || !d.End.Equal(time.Now()) {
			t.Errorf("after a minute: %d points of %v s until %v", len(d.Calls), d.Step, d.End)
		}
		if age := time.Since(before.Time); age < judgedSpan || age > judgedSpan+sampleEvery {
			t.Errorf("the document for Judge is %v old", age)
		}
		last := func(l []float64) float64 { return l[len(l)-1] }
		for name, tt := range map[string]struct{ got, want float64 }{
			"calls": {last(d.Calls), 200}, "in": {last(d.BytesIn), 200e3}, "out": {last(d.BytesOut), 600e3}, "latency": {last(d.Latency), 2e-3},
			"clients": {last(d.Clients), 7}, "memory": {last(d.Memory), 4096}, "failed": {last(d.Failed), 10},
			"calls of a": {last(d.Upstreams["a"].Calls), 100}, "latency of a": {last(d.Upstreams["a"].Latency), 2e-3},
			"credits of a": {last(d.Upstreams["a"].Credits), 0.25}, "waiting of a": {last(d.Upstreams["a"].Waiting), 3},
		} {
			if diff := tt.got - tt.want; diff > 1e-9 || diff < -1e-9 {
				t.Errorf("%s is %v, want %v", name, tt.got, tt.want)
			}
		}
		b.mu.Lock()
		b.upstreams = []string{"b", "c"} // a reload
		b.mu.Unlock()
		time.Sleep(sampleEvery)
		synctest.Wait()
		d, _ = h.sampler.view()
		if _, there := d.Upstreams["a"]; there || len(d.Upstreams) != 2 {
			t.Errorf("after a reload the history has %v", d.Upstreams)
		}
		if c := d.Upstreams["c"].Calls; len(c) != 13 || c[5] != 0 {
			t.Errorf("a new upstream has %v", c)
		}
		if slices.Min(d.Calls) < 0 || slices.Max(d.Calls) > 2e4 {
			t.Errorf("a reload makes rates of %v", d.Calls)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		d, _ = h.sampler.view()
		for name, l := range map[string][]float64{"calls": d.Calls, "in": d.BytesIn, "out": d.BytesOut, "latency": d.Latency, "clients": d.Clients, "memory": d.Memory, "failed": d.Failed, "b": d.Upstreams["b"].Waiting} {
			if len(l) != historyPoints || cap(l) > 2*historyPoints {
				t.Errorf("%s has %d points, and room for %d", name, len(l), cap(l))
			}
		}
		if n := len(h.sampler.recent); n > int(judgedSpan/sampleEvery)+2 {
			t.Errorf("%d documents are kept", n)
		}
		b.mu.Lock()
		b.began = time.Now() // counters begin anew
		b.mu.Unlock()
		time.Sleep(sampleEvery)
		synctest.Wait()
		if d, _ = h.sampler.view(); slices.Min(d.Calls) < 0 || slices.Max(d.Calls) > 1e3 {
			t.Errorf("counters that begin anew make rates from %v to %v", slices.Min(d.Calls), slices.Max(d.Calls))
		}
	})
}

// TestNoGrowth: a day of refreshes with changing queries leaves nothing behind.
func TestNoGrowth(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{upstream: 4, clients: 20, began: time.Now()}
		template := f.Document(status.Query{}) // to make one takes longer than to serve it
		fillLists(&template)
		h := NewHandler(Source{Document: func(status.Query) status.Document {
			d := template
			d.Time = time.Now()
			return d
		}})
		h.Start()
		defer h.Close()
		refresh := func(n int) {
			for i := range n {
				if w := ask(h, "GET", fmt.Sprintf("/api/v1/status?sort=%s&filter=10.20.%d", status.Sorts[i%len(status.Sorts)], i%100), "Accept-Encoding", "gzip"); w.Code != 200 {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				time.Sleep(24 * time.Hour / 2000)
			}
		}
		n := 2000
		if testkit.RaceEnabled {
			n = 100 // the race detector makes each ten times slower
		}
		refresh(200)
		before := heap()
		refresh(n)
		if after := heap(); after > before+1<<20 {
			t.Errorf("the heap has grown from %d to %d", before, after)
		}
	})
}
