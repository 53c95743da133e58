package tcpframe

import (
	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// tlsCounters are the metrics of TLS of one listener or upstream.
type tlsCounters struct {
	of            *counters
	lines         loglimit.Limit
	conns         *metrics.Gauge // secured
	handshakes    *metrics.Gauge // under way
	full, resumed *metrics.Counter
	failures      map[TLSReason]*metrics.Counter // constant
}

// tlsMetricsOf are the metrics of each side.
var tlsMetricsOf = map[side]struct {
	conns, handshaking   metrics.GaugeDef
	handshakes, failures metrics.CounterDef
}{
	ofListener: {
		conns: metrics.ListenerTLSConnections, handshaking: metrics.ListenerTLSStarting,
		handshakes: metrics.ListenerTLSHandshakes, failures: metrics.ListenerTLSFailures,
	},
	ofUpstream: {
		conns: metrics.UpstreamTLSConnections, handshaking: metrics.UpstreamTLSStarting,
		handshakes: metrics.UpstreamTLSHandshakes, failures: metrics.UpstreamTLSFailures,
	},
}

// countTLS returns the counters of TLS that belong to c. It creates them at first use.
func (e *Engine) countTLS(c *counters) *tlsCounters {
	if t := c.tls.Load(); t != nil {
		return t
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := c.tls.Load(); t != nil {
		return t
	}
	r, m := e.metrics, tlsMetricsOf[c.log.side]
	t := &tlsCounters{
		of:         c,
		conns:      r.Gauge(m.conns, c.name),
		handshakes: r.Gauge(m.handshaking, c.name),
		full:       r.Counter(m.handshakes, c.name, "full"),
		resumed:    r.Counter(m.handshakes, c.name, "resumed"),
		failures:   make(map[TLSReason]*metrics.Counter),
	}
	for _, why := range tlsReasons {
		t.failures[why] = r.Counter(m.failures, c.name, string(why))
	}
	c.tls.Store(t)
	return t
}

// done counts a handshake.
func (t *tlsCounters) done(resumed bool) {
	if resumed {
		t.resumed.Inc()
	} else {
		t.full.Inc()
	}
}

// fail counts and logs that the TLS of c has failed.
func (t *tlsCounters) fail(c *Conn, e *TLSError) {
	why := e.Reason
	if t.failures[why] == nil {
		why = TLSFailed // of a callback
	}
	t.failures[why].Inc()
	event := "client_tls_failed"
	if t.of.log.side == ofUpstream {
		event = "upstream_tls_failed"
	}
	t.lines.Line(&t.of.log.log, zerolog.WarnLevel, event).Str(string(t.of.log.side), t.of.name).Stringer("peer", c.RemoteAddr()).Str("reason", string(why)).Err(e).Msg("connection closed because of its TLS")
}
