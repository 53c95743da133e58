package tcpframe

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// counters are the metrics of one listener or upstream.
type counters struct {
	name     string
	log      refusalLog
	conns    *metrics.Gauge
	accepted *metrics.Counter
	refused  map[reason]*metrics.Counter // constant
	received *metrics.Counter
	sent     *metrics.Counter
	copied   *metrics.Counter
	paused   *metrics.Gauge
	pausedNs atomic.Uint64
	inbound  *metrics.Gauge
	outbound *metrics.Gauge
}

// A side says whose connections counters count. It is also the name of their label and the key of
// the name in log lines. A listener and an upstream may have the same name.
type side string

const (
	ofListener side = "listener"
	ofUpstream side = "upstream"
)

// metricNames are the names of the metrics of each side.
var metricNames = map[side]struct {
	conns, opened, received, sent, paused, pausedSeconds, inbound, outbound, refused string
	stage                                                                            string // of metrics.Copied
}{
	ofListener: {
		conns: "tcp_connections", opened: "tcp_accepted_total", received: "tcp_received_bytes_total", sent: "tcp_sent_bytes_total",
		paused: "tcp_paused_connections", pausedSeconds: "tcp_paused_seconds_total",
		inbound: "tcp_inbound_buffered_bytes", outbound: "tcp_outbound_buffered_bytes",
		refused: "tcp_refused_total", stage: "tcp",
	},
	ofUpstream: {
		conns: "upstream_tcp_connections", opened: "upstream_tcp_dialled_total", received: "upstream_tcp_received_bytes_total", sent: "upstream_tcp_sent_bytes_total",
		paused: "upstream_tcp_paused_connections", pausedSeconds: "upstream_tcp_paused_seconds_total",
		inbound: "upstream_tcp_inbound_buffered_bytes", outbound: "upstream_tcp_outbound_buffered_bytes",
		refused: "upstream_tcp_refused_total", stage: "upstream_tcp",
	},
}

// countersKey is what counters are for.
type countersKey struct {
	side side
	name string
}

// counters returns the counters of the listener or upstream with this name. It creates them at
// first use. A listener that is closed and opened again keeps its counters.
func (e *Engine) counters(of side, name string) *counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := countersKey{of, name}
	if c := e.counted[key]; c != nil {
		return c
	}
	r, label, n := e.metrics, string(of), metricNames[of]
	c := &counters{
		name:     name,
		log:      refusalLog{log: e.log, side: of},
		conns:    r.Gauge(n.conns, "Open TCP connections.", label, name),
		accepted: r.Counter(n.opened, "TCP connections that were accepted, or dialled.", label, name),
		received: r.Counter(n.received, "Octets read from TCP connections.", label, name),
		sent:     r.Counter(n.sent, "Octets written to TCP connections.", label, name),
		copied:   metrics.Copied(r, n.stage, name),
		paused:   r.Gauge(n.paused, "TCP connections from which the bridge does not read at present, because of backpressure.", label, name),
		inbound:  r.Gauge(n.inbound, "Octets that were read and belong to an incomplete record or to a paused TCP connection.", label, name),
		outbound: r.Gauge(n.outbound, "Octets that wait for TCP peers to read.", label, name),
		refused:  make(map[reason]*metrics.Counter),
	}
	r.CounterFunc(n.pausedSeconds, "Time in which the bridge did not read from TCP connections, summed over all connections.", func() float64 {
		return float64(c.pausedNs.Load()) / 1e9
	}, label, name)
	for _, why := range reasons {
		c.refused[why] = r.Counter(n.refused, "TCP connections that the bridge refused or closed, by reason.",
			label, name, "reason", string(why))
	}
	e.counted[key] = c
	return c
}

// ForgetUpstream drops the counters of an upstream that has ended. The caller has the registry forget
// their series.
func (e *Engine) ForgetUpstream(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.counted, countersKey{ofUpstream, name})
}

// refuse counts and logs a connection that a Listener did not admit.
func (c *counters) refuse(peer netip.AddrPort, why reason, err error) {
	c.refused[why].Inc()
	c.log.line("connection refused", c.name, peer, why, err)
}

// closed counts and logs a Conn that closes itself.
func (c *counters) closed(peer netip.AddrPort, err *recordError) {
	c.refused[err.reason].Inc()
	c.log.line("connection closed", c.name, peer, err.reason, err)
}

// A refusalLog writes a bounded number of lines.
type refusalLog struct {
	log   zerolog.Logger
	side  side
	lines loglimit.Limit
}

// line logs msg, as often as the limit allows.
func (l *refusalLog) line(msg, name string, peer netip.AddrPort, why reason, err error) {
	ok, suppressed := l.lines.Allow(time.Now())
	if !ok {
		return
	}
	ev := l.log.Warn().Str(string(l.side), name).Stringer("peer", peer).Str("reason", string(why))
	if suppressed > 0 {
		ev.Uint64("suppressed", suppressed)
	}
	ev.Err(err).Msg(msg)
}
