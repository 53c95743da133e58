//go:build otel

package tracing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// Options are the parameters of a Tracer.
type Options struct {
	Endpoint string        // URL of the collector
	Sample   float64       // a part of all Calls, above 0 and up to 1
	Slower   time.Duration // time from which a Call always has a span; 0 or less for never
	Service  Service
	Log      zerolog.Logger // for what goes wrong

	Sent, Dropped *metrics.Counter
}

// A Service names the bridge among others: OpenTelemetry's resource.
type Service struct{ Version, Instance string }

const (
	queueLen = 2048 // Calls that wait
	maxBatch = 256  // Calls of one export

	batchDelay    = time.Second      // from the first Call of a batch to its export
	exportTimeout = 10 * time.Second // of one export, with its repetitions
	closeTimeout  = 2 * time.Second
)

// A Tracer sends spans of Calls.
type Tracer struct {
	o        Options
	queue    chan observe.CallRecord
	exporter *otlptrace.Exporter
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	ended    spans // what the provider has ended; owned by run
	failures loglimit.Seldom

	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when run has returned
	ctx    context.Context
	cancel context.CancelFunc
}

// spans collects the spans that the SDK has ended.
type spans []sdk.ReadOnlySpan

func (*spans) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (s *spans) OnEnd(span sdk.ReadOnlySpan)              { *s = append(*s, span) }
func (*spans) Shutdown(context.Context) error             { return nil }
func (*spans) ForceFlush(context.Context) error           { return nil }

// Start starts a Tracer. It does not wait for the collector.
func Start(o Options) (*Tracer, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	if strings.Trim(endpoint.Path, "/") == "" {
		endpoint.Path = "/v1/traces"
	}
	t := &Tracer{o: o, queue: make(chan observe.CallRecord, queueLen), stop: make(chan struct{}), done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.exporter, err = otlptracehttp.New(t.ctx, otlptracehttp.WithEndpointURL(endpoint.String()), otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		t.cancel()
		return nil, fmt.Errorf("tracing: %w", err)
	}
	// An error here is about a part that could not be found out. The rest is there.
	described, _ := resource.New(t.ctx, resource.WithHost(), resource.WithAttributes(o.Service.attributes()...), resource.WithFromEnv())
	t.provider = sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample()), sdk.WithSpanProcessor(&t.ended), sdk.WithResource(described))
	t.tracer = t.provider.Tracer("github.com/rdmabridge/rdmabridge", trace.WithInstrumentationVersion(o.Service.Version), trace.WithSchemaURL(schemaURL))
	go t.run()
	return t, nil
}

// Wants implements observe.Observer.
func (t *Tracer) Wants(r *observe.CallRecord) bool {
	return t.o.Slower > 0 && r.Settled-r.Began >= int64(t.o.Slower) || rand.Float64() < t.o.Sample
}

// Observe implements observe.Observer.
func (t *Tracer) Observe(r *observe.CallRecord) {
	select {
	case t.queue <- *r:
	default:
		t.o.Dropped.Inc()
	}
}

// Close sends the spans of the Calls that wait, and gives up after a while.
func (t *Tracer) Close() {
	close(t.stop)
	timer := time.AfterFunc(closeTimeout, t.cancel)
	<-t.done
	timer.Stop()
	t.cancel()
}

// run sends batches until Close.
func (t *Tracer) run() {
	defer close(t.done)
	for {
		select {
		case r := <-t.queue:
			t.send(t.batch(&r))
			continue
		case <-t.stop:
		}
		break
	}
	for len(t.queue) > 0 && t.ctx.Err() == nil {
		r := <-t.queue
		t.send(t.batch(&r))
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = t.exporter.Shutdown(ctx)
	_ = t.provider.Shutdown(ctx)
}

// batch makes the spans of first and of the Calls that come in the next batchDelay. It returns how many
// Calls these are.
func (t *Tracer) batch(first *observe.CallRecord) (calls uint64) {
	t.spans(first)
	timer := time.NewTimer(batchDelay)
	defer timer.Stop()
	stop := t.stop
	for calls = 1; calls < maxBatch; calls++ {
		select {
		case r := <-t.queue:
			t.spans(&r)
			continue
		default:
		}
		select {
		case r := <-t.queue:
			t.spans(&r)
		case <-timer.C:
			return calls
		case <-stop:
			return calls
		}
	}
	return calls
}

// send exports the spans that have ended, which are those of so many Calls.
func (t *Tracer) send(calls uint64) {
	ctx, cancel := context.WithTimeout(t.ctx, exportTimeout)
	defer cancel()
	err := t.exporter.ExportSpans(ctx, t.ended)
	clear(t.ended)
	t.ended = t.ended[:0]
	if err == nil {
		t.o.Sent.Add(calls)
		return
	}
	t.o.Dropped.Add(calls)
	t.failures.Line(&t.o.Log, zerolog.WarnLevel, "tracing_failed").Err(err).Str("endpoint", t.o.Endpoint).
		Msg("the collector does not take the traces; they are lost")
}
