package tcpframe

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A counterSet has the counters of all listeners and upstreams. It is safe for concurrent use.
type counterSet struct {
	metrics *metrics.Registry // constant, as the next one
	log     zerolog.Logger

	mu  sync.Mutex // guards all, and what its values get later; a leaf
	all map[countersKey]*counters
}

// counters are the metrics of one listener or upstream.
type counters struct {
	set      *counterSet // constant
	name     string
	side     side
	lines    struct{ refused, closed loglimit.Limit }
	conns    *metrics.Gauge                // nil for an upstream
	refused  map[reason]*metrics.Counter   // constant
	proxies  atomic.Pointer[proxyCounters] // nil for an upstream, and until the listener has proxies
	tls      *tlsCounters                  // nil until a connection is switched to TLS; guarded by set.mu
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

// metricsOf are the metrics of each side.
var metricsOf = map[side]struct {
	received, sent, copied, pausedSeconds, refused metrics.CounterDef
	paused, inbound, outbound                      metrics.GaugeDef
}{
	ofListener: {
		received: metrics.ListenerTCPReceivedBytes, sent: metrics.ListenerTCPSentBytes, copied: metrics.ListenerCopiedBytes,
		paused: metrics.ListenerTCPPausedConnections, pausedSeconds: metrics.ListenerTCPPausedSeconds,
		inbound: metrics.ListenerTCPInboundBufferedBytes, outbound: metrics.ListenerTCPOutboundBufferedBytes,
		refused: metrics.ListenerRefusedConnections,
	},
	ofUpstream: {
		received: metrics.UpstreamTCPReceivedBytes, sent: metrics.UpstreamTCPSentBytes, copied: metrics.UpstreamCopiedBytes,
		paused: metrics.UpstreamTCPPausedConnections, pausedSeconds: metrics.UpstreamTCPPausedSeconds,
		inbound: metrics.UpstreamTCPInboundBufferedBytes, outbound: metrics.UpstreamTCPOutboundBufferedBytes,
		refused: metrics.UpstreamTCPClosedConnections,
	},
}

// countersKey is what counters are for.
type countersKey struct {
	side side
	name string
}

// of returns the counters of the listener or upstream with this name. It creates them at
// first use. A listener that is closed and opened again keeps its counters.
func (s *counterSet) of(of side, name string) *counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := countersKey{of, name}
	if c := s.all[key]; c != nil {
		return c
	}
	r, m := s.metrics, metricsOf[of]
	c := &counters{
		set:      s,
		name:     name,
		side:     of,
		received: r.Counter(m.received, name),
		sent:     r.Counter(m.sent, name),
		copied:   r.Counter(m.copied, name, "tcp"),
		paused:   r.Gauge(m.paused, name),
		inbound:  r.Gauge(m.inbound, name),
		outbound: r.Gauge(m.outbound, name),
		refused:  make(map[reason]*metrics.Counter),
	}
	reasons := connReasons
	if of == ofListener {
		c.conns = r.Gauge(metrics.ListenerTCPConnections, name)
		reasons = append(slices.Clone(listenerReasons), connReasons...)
	}
	r.CounterFunc(m.pausedSeconds, func() float64 { return float64(c.pausedNs.Load()) / 1e9 }, name)
	for _, why := range reasons {
		c.refused[why] = r.Counter(m.refused, name, string(why))
	}
	s.all[key] = c
	return c
}

// forget drops the counters of a listener or an upstream.
func (s *counterSet) forget(of side, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, countersKey{of, name})
}

// refuse counts and logs a connection that a Listener did not admit. proxy is the proxy that has made it for
// peer, or the zero AddrPort.
func (c *counters) refuse(peer, proxy netip.AddrPort, why reason, err error) {
	c.refused[why].Inc()
	e := c.lines.refused.Line(&c.set.log, zerolog.WarnLevel, "client_refused").Str(string(c.side), c.name).Stringer("peer", peer)
	if proxy.IsValid() {
		e = e.Stringer("proxy", proxy)
	}
	e.Str("reason", string(why)).Err(err).Msg("connection refused")
}

// closed counts and logs a Conn that closes itself.
func (c *counters) closed(peer netip.AddrPort, err *recordError) {
	c.refused[err.reason].Inc()
	event := "client_closed"
	if c.side == ofUpstream {
		event = "reply_refused"
	}
	c.lines.closed.Line(&c.set.log, zerolog.WarnLevel, event).Str(string(c.side), c.name).Stringer("peer", peer).Str("reason", string(err.reason)).Err(err).Msg("connection closed")
}

// refused adds to all how many connections of a listener were refused or closed so far, by reason.
func (s *counterSet) refused(listener string, all map[string]uint64) {
	s.mu.Lock()
	c := s.all[countersKey{ofListener, listener}]
	s.mu.Unlock()
	if c == nil {
		return
	}
	for why, n := range c.refused {
		if n := n.Value(); n > 0 {
			all[string(why)] += n
		}
	}
}

// proxyCounters are the metrics of a Listener that has proxies.
type proxyCounters struct {
	named, unnamed *metrics.Counter // connections whose header names a client, or none
	waiting        *metrics.Gauge   // connections in the state announcing
}

// countProxies makes the counters of proxies for the listener of c.
func (c *counters) countProxies() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if c.proxies.Load() != nil {
		return
	}
	c.proxies.Store(&proxyCounters{
		named:   c.set.metrics.Counter(metrics.ListenerProxyConnections, c.name, "client"),
		unnamed: c.set.metrics.Counter(metrics.ListenerProxyConnections, c.name, "proxy"),
		waiting: c.set.metrics.Gauge(metrics.ListenerProxyStarting, c.name),
	})
}

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
func (c *counters) countTLS() *tlsCounters {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if c.tls != nil {
		return c.tls
	}
	r, m := c.set.metrics, tlsMetricsOf[c.side]
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
	c.tls = t
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

// fail counts and logs that the TLS of the connection of peer has failed.
func (t *tlsCounters) fail(peer netip.AddrPort, e *TLSError) {
	why := e.Reason
	if t.failures[why] == nil {
		why = TLSFailed // of a callback
	}
	t.failures[why].Inc()
	event := "client_tls_failed"
	if t.of.side == ofUpstream {
		event = "upstream_tls_failed"
	}
	t.lines.Line(&t.of.set.log, zerolog.WarnLevel, event).Str(string(t.of.side), t.of.name).Stringer("peer", peer).Str("reason", string(why)).Err(e).Msg("connection closed because of its TLS")
}
