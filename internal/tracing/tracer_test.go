//go:build otel

package tracing

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A receiver is a collector that keeps what it is sent.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	paths    []string
	resource map[string]string
	spans    []*otlp.Span
	status   int           // of the answer; 0 for 200
	gate     chan struct{} // answers wait for it; nil for not
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if r.gate != nil {
			<-r.gate
		}
		body := io.Reader(q.Body)
		if q.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(q.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		b, err := io.ReadAll(body)
		var m collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paths = append(r.paths, q.Method+" "+q.URL.Path)
		if r.status != 0 {
			w.WriteHeader(r.status)
			return
		}
		for _, rs := range m.ResourceSpans {
			r.resource = values(rs.Resource.Attributes)
			for _, ss := range rs.ScopeSpans {
				r.spans = append(r.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func values(attributes []*common.KeyValue) map[string]string {
	m := make(map[string]string)
	for _, a := range attributes {
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			m[a.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			m[a.Key] = fmt.Sprint(v.IntValue)
		}
	}
	return m
}

func start(t *testing.T, o Options) *Tracer {
	t.Helper()
	m := metrics.New()
	o.Sent, o.Dropped = m.Counter(metrics.TraceCalls), m.Counter(metrics.TraceDroppedCalls)
	x, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func record() *observe.CallRecord {
	return &observe.CallRecord{
		Times: observe.Times{Began: 1000e6, Asked: 1001e6, Sent: 1003e6, Replied: 1007e6}, Settled: 1015e6, At: time.Unix(1000, 0),
		XID: 0x1234, UpstreamXID: 0x9abcdef0, Client: netip.MustParseAddrPort("[::ffff:192.0.2.1]:700"), Listener: "nfs", Transport: "tcp",
		Upstream: "storage", Program: 100003, Version: 4, Procedure: 1, ProgramName: "nfs", Operation: "READ", Operations: 4,
		Status: "stale", NFSStatus: 70, HasNFS: true, Failed: true, BytesIn: 200, BytesOut: 4096, Result: "answered", Replays: 1, Shape: "chunks",
	}
}

// TestSpans: a Call arrives as a span with its four phases and its attributes.
func TestSpans(t *testing.T) {
	r := newReceiver(t)
	x := start(t, Options{Endpoint: r.URL, Sample: 1, Service: Service{Version: "1.2", Instance: "host:7"}})
	c := record()
	if !x.Wants(c) {
		t.Fatal("a sample of all leaves out a Call")
	}
	x.Observe(c)
	x.Close()
	if want := []string{"POST /v1/traces"}; fmt.Sprint(r.paths) != fmt.Sprint(want) {
		t.Fatalf("requests %v, want %v", r.paths, want)
	}
	for k, want := range map[string]string{"service.name": "rdmabridge", "service.version": "1.2", "service.instance.id": "host:7"} {
		if r.resource[k] != want {
			t.Errorf("resource: %s is %q, want %q", k, r.resource[k], want)
		}
	}
	byName := make(map[string]*otlp.Span)
	for _, s := range r.spans {
		byName[s.Name] = s
	}
	call := byName["nfs/READ"]
	if len(r.spans) != 5 || call == nil {
		t.Fatalf("%d spans: %v", len(r.spans), byName)
	}
	if call.Kind != otlp.Span_SPAN_KIND_SERVER || len(call.ParentSpanId) != 0 || call.Status.Code != otlp.Status_STATUS_CODE_ERROR || call.Status.Message != "stale" {
		t.Errorf("span %v", call)
	}
	got := values(call.Attributes)
	for k, want := range map[string]string{
		"rpc.system.name": "onc_rpc", "rpc.method": "nfs/READ", "onc_rpc.program.name": "nfs", "onc_rpc.version": "4",
		"onc_rpc.procedure.number": "1", "onc_rpc.procedure.name": "READ", "rpc.response.status_code": "stale", "error.type": "stale",
		"client.address": "192.0.2.1", "client.port": "700", "network.transport": "tcp",
		"rdmabridge.listener": "nfs", "rdmabridge.upstream": "storage", "rdmabridge.xid": "0x00001234", "rdmabridge.upstream_xid": "0x9abcdef0",
		"rdmabridge.result": "answered", "rdmabridge.call.size": "200", "rdmabridge.reply.size": "4096", "rdmabridge.nfs_status": "70",
		"rdmabridge.operations": "4", "rdmabridge.replays": "1", "rdmabridge.shape": "chunks",
	} {
		if got[k] != want {
			t.Errorf("%s is %q, want %q", k, got[k], want)
		}
	}
	end := uint64(1000e9)
	from := end - 15e6
	if call.StartTimeUnixNano != from || call.EndTimeUnixNano != end {
		t.Errorf("the span is from %d to %d", call.StartTimeUnixNano, call.EndTimeUnixNano)
	}
	for _, p := range []struct {
		name  string
		milli uint64
	}{{"admission", 1}, {"credit", 2}, {"server", 4}, {"client", 8}} {
		s := byName[p.name]
		if s == nil || !bytes.Equal(s.ParentSpanId, call.SpanId) || !bytes.Equal(s.TraceId, call.TraceId) {
			t.Fatalf("%s: %v", p.name, s)
		}
		if s.StartTimeUnixNano != from || s.EndTimeUnixNano != from+p.milli*1e6 {
			t.Errorf("%s is from %d to %d, want %d ms from %d", p.name, s.StartTimeUnixNano, s.EndTimeUnixNano, p.milli, from)
		}
		from = s.EndTimeUnixNano
	}
	if n := x.o.Sent.Value(); n != 1 {
		t.Errorf("%d Calls counted", n)
	}
}

// A Call that the bridge answered itself has one phase.
func TestLocalCall(t *testing.T) {
	r := newReceiver(t)
	x := start(t, Options{Endpoint: r.URL + "/v1/traces", Sample: 1})
	x.Observe(&observe.CallRecord{Times: observe.Times{Began: 1e6, Replied: 1e6}, Settled: 2e6, At: time.Unix(1, 0), ProgramName: "nfs", Operation: "NULL", Status: "ok"})
	x.Close()
	var names []string
	for _, s := range r.spans {
		names = append(names, s.Name)
	}
	if fmt.Sprint(names, r.paths) != "[client nfs/NULL] [POST /v1/traces]" {
		t.Errorf("spans %v, requests %v", names, r.paths)
	}
}

func TestWants(t *testing.T) {
	x := &Tracer{o: Options{Sample: 0.1, Slower: 20 * time.Millisecond}}
	c := record() // 15 ms
	n := 0
	for range 100000 {
		if x.Wants(c) {
			n++
		}
	}
	if n < 9000 || n > 11000 {
		t.Errorf("a sample of 10%% has %d of 100000 Calls", n)
	}
	x.o.Sample = 1e-12
	c.Settled = c.Began + 20e6
	if !x.Wants(c) {
		t.Error("a slow Call is left out")
	}
	if x.o.Slower = -1; x.Wants(c) {
		t.Error("no Call is slow, and one is chosen")
	}
	if n := testing.AllocsPerRun(1000, func() { x.Wants(c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestStuckCollector: a collector that does not answer costs Calls their spans, and nothing waits for it.
func TestStuckCollector(t *testing.T) {
	r := newReceiver(t)
	r.gate = make(chan struct{})
	x := start(t, Options{Endpoint: r.URL, Sample: 1})
	c := record()
	const calls = queueLen + maxBatch + 500
	began := time.Now()
	for range calls {
		x.Observe(c)
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("%d Calls took %v", calls, d)
	}
	if n := x.o.Dropped.Value(); n < 500 {
		t.Errorf("%d Calls dropped, want at least 500", n)
	}
	began = time.Now()
	x.Close()
	if d := time.Since(began); d > 2*closeTimeout+testkit.Patience/10 {
		t.Errorf("Close took %v", d)
	}
	close(r.gate)
}

// TestRefusingCollector: what the collector refuses is counted, and the log says it once.
func TestRefusingCollector(t *testing.T) {
	r := newReceiver(t)
	r.status = http.StatusBadRequest
	var out bytes.Buffer
	x := start(t, Options{Endpoint: r.URL, Sample: 1, Log: zerolog.New(&out)})
	for range 3 * maxBatch {
		x.Observe(record())
	}
	x.Close()
	if sent, dropped := x.o.Sent.Value(), x.o.Dropped.Value(); sent != 0 || dropped != 3*maxBatch {
		t.Errorf("%d Calls sent and %d dropped, want 0 and %d", sent, dropped, 3*maxBatch)
	}
	if n := strings.Count(out.String(), "tracing_failed"); n != 1 || len(r.paths) != 3 {
		t.Errorf("%d lines for %d requests:\n%s", n, len(r.paths), &out)
	}
}
