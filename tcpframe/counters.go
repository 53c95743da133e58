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

// counters returns the counters of the listener or upstream with this name. It creates them at
// first use. A listener that is closed and opened again keeps its counters.
func (e *Engine) counters(name string) *counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.counted[name]; c != nil {
		return c
	}
	r := e.metrics
	c := &counters{
		name:     name,
		log:      refusalLog{log: e.log},
		conns:    r.Gauge("tcp_connections", "Open TCP connections.", "listener", name),
		accepted: r.Counter("tcp_accepted_total", "TCP connections that were accepted or dialled.", "listener", name),
		received: r.Counter("tcp_received_bytes_total", "Octets read from TCP connections.", "listener", name),
		sent:     r.Counter("tcp_sent_bytes_total", "Octets written to TCP connections.", "listener", name),
		copied:   metrics.Copied(r, "tcp", name),
		paused:   r.Gauge("tcp_paused_connections", "TCP connections from which the bridge does not read at present, because of backpressure.", "listener", name),
		inbound:  r.Gauge("tcp_inbound_buffered_bytes", "Octets that were read and belong to an incomplete record or to a paused TCP connection.", "listener", name),
		outbound: r.Gauge("tcp_outbound_buffered_bytes", "Octets that wait for TCP peers to read.", "listener", name),
		refused:  make(map[reason]*metrics.Counter),
	}
	r.CounterFunc("tcp_paused_seconds_total", "Time in which the bridge did not read from TCP connections, summed over all connections.", func() float64 {
		return float64(c.pausedNs.Load()) / 1e9
	}, "listener", name)
	for _, why := range reasons {
		c.refused[why] = r.Counter("tcp_refused_total", "TCP connections that the bridge refused or closed, by reason.",
			"listener", name, "reason", string(why))
	}
	e.counted[name] = c
	return c
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
	lines loglimit.Limit
}

// line logs msg, as often as the limit allows.
func (l *refusalLog) line(msg, name string, peer netip.AddrPort, why reason, err error) {
	ok, suppressed := l.lines.Allow(time.Now())
	if !ok {
		return
	}
	ev := l.log.Warn().Str("listener", name).Stringer("peer", peer).Str("reason", string(why))
	if suppressed > 0 {
		ev.Uint64("suppressed", suppressed)
	}
	ev.Err(err).Msg(msg)
}
