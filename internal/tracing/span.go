//go:build otel

package tracing

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

const schemaURL = semconv.SchemaURL

func (s *Service) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{semconv.ServiceName("rdmabridge"), semconv.ServiceVersion(s.Version), semconv.ServiceInstanceID(s.Instance)}
}

// spans makes the spans of r, which are in t.ended then.
func (t *Tracer) spans(r *observe.CallRecord) {
	at := func(clock int64) time.Time { return r.At.Add(time.Duration(clock - r.Settled)) }
	method := r.ProgramName + "/" + r.Operation
	ctx, call := t.tracer.Start(context.Background(), method, trace.WithTimestamp(at(r.Began)),
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes(r, method)...))
	p := r.Phases()
	from := r.Began
	phase := func(name string, seconds float64, kind trace.SpanKind) {
		to := min(from+int64(seconds*1e9+0.5), r.Settled)
		if to > from {
			_, s := t.tracer.Start(ctx, name, trace.WithTimestamp(at(from)), trace.WithSpanKind(kind))
			s.End(trace.WithTimestamp(at(to)))
		}
		from = to
	}
	phase("admission", p.Admission, trace.SpanKindInternal)
	phase("credit", p.Credit, trace.SpanKindInternal)
	phase("server", p.Server, trace.SpanKindClient)
	phase("client", p.Client, trace.SpanKindInternal)
	if r.Failed {
		why := r.Status
		if why == "" {
			why = r.Result
		}
		call.SetAttributes(semconv.ErrorTypeKey.String(why))
		call.SetStatus(codes.Error, why)
	}
	call.End(trace.WithTimestamp(at(r.Settled)))
}

// attributes are those of the semantic conventions for RPC, and our own.
func attributes(r *observe.CallRecord, method string) []attribute.KeyValue {
	as := append(make([]attribute.KeyValue, 0, 24),
		semconv.RPCSystemNameKey.String("onc_rpc"), semconv.RPCMethod(method),
		semconv.OncRPCProgramName(r.ProgramName), semconv.OncRPCVersion(int(r.Version)),
		semconv.OncRPCProcedureNumber(int(r.Procedure)), semconv.OncRPCProcedureName(r.Operation),
		semconv.ClientAddress(r.Client.Addr().Unmap().String()), semconv.ClientPort(int(r.Client.Port())),
		semconv.NetworkTransportKey.String(r.Transport),
		attribute.String("rdmabridge.listener", r.Listener),
		attribute.String("rdmabridge.xid", xid(r.XID)),
		attribute.String("rdmabridge.result", r.Result),
		attribute.Int("rdmabridge.call.size", r.BytesIn), attribute.Int("rdmabridge.reply.size", r.BytesOut),
	)
	if r.Status != "" {
		as = append(as, semconv.RPCResponseStatusCode(r.Status))
	}
	if r.HasNFS {
		as = append(as, attribute.Int("rdmabridge.nfs_status", int(r.NFSStatus)))
	}
	if r.Upstream != "" {
		as = append(as, attribute.String("rdmabridge.upstream", r.Upstream))
	}
	if r.Sent != 0 {
		as = append(as, attribute.String("rdmabridge.upstream_xid", xid(r.UpstreamXID)))
	}
	if r.Operations > 0 {
		as = append(as, attribute.Int("rdmabridge.operations", r.Operations))
	}
	if r.Shape != "" {
		as = append(as, attribute.String("rdmabridge.shape", r.Shape))
	}
	if r.Replays > 0 {
		as = append(as, attribute.Int("rdmabridge.replays", r.Replays))
	}
	return as
}

// xid formats an XID as Wireshark does.
func xid(n uint32) string { return fmt.Sprintf("0x%08x", n) }
