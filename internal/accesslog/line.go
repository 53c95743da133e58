package accesslog

import (
	"io"
	"math"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A writer formats lines. One goroutine uses it.
type writer struct {
	out   errWriter
	lines zerolog.Logger
}

// An errWriter remembers the error of the last Write: a zerolog.Logger does not return it.
type errWriter struct {
	io.Writer
	err error
}

func (w *errWriter) Write(p []byte) (n int, err error) {
	n, w.err = w.Writer.Write(p)
	return n, nil
}

func newWriter(out io.Writer, pid int) *writer {
	w := &writer{out: errWriter{Writer: out}}
	w.lines = zerolog.New(&w.out)
	if pid != 0 {
		w.lines = w.lines.With().Int("pid", pid).Logger()
	}
	return w
}

// write writes the line of e. docs/logs.md has a table of its members.
func (w *writer) write(e *entry) error {
	r := &e.record
	l := w.lines.Info().Time("time", r.At).Str("event", "call").Str("chosen", e.why).
		Str("listener", r.Listener).Str("transport", r.Transport).Str("peer", r.Client.String())
	if r.TLS {
		l.Bool("tls", true)
		if r.Identity != "" {
			l.Str("identity", r.Identity)
		}
	}
	if r.Upstream != "" {
		l.Str("upstream", r.Upstream)
	}
	if r.Rule != "" {
		l.Str("rule", r.Rule)
	}
	l.Uint32("xid", r.XID)
	if r.Sent != 0 {
		l.Uint32("upstream_xid", r.UpstreamXID)
	}
	l.Str("program", r.ProgramName).Uint32("version", r.Version).Uint32("procedure", r.Procedure).Str("operation", r.Operation)
	if r.Operations > 0 {
		l.Int("operations", r.Operations)
	}
	l.Str("result", r.Result)
	if r.Status != "" {
		l.Str("status", r.Status)
	}
	if r.HasNFS {
		l.Uint32("nfs_status", r.NFSStatus)
	}
	l.Int("bytes_in", r.BytesIn).Int("bytes_out", r.BytesOut)
	if r.Shape != "" {
		l.Str("shape", r.Shape)
	}
	if r.Replays > 0 {
		l.Int("replays", r.Replays)
	}
	phases(l, r)
	l.Send()
	return w.out.err
}

// phases adds the time of r and its four parts, in seconds.
func phases(l *zerolog.Event, r *observe.CallRecord) {
	p := r.Phases()
	l.Float64("seconds", micro(p.Total())).Float64("admission_seconds", micro(p.Admission)).Float64("credit_seconds", micro(p.Credit)).
		Float64("server_seconds", micro(p.Server)).Float64("client_seconds", micro(p.Client))
}

// micro rounds seconds to microseconds.
func micro(seconds float64) float64 { return math.Round(seconds*1e6) / 1e6 }
