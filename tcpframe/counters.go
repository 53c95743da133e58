package tcpframe

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// counters are the metrics of one listener or upstream.
type counters struct {
	name     string
	log      refusalLog
	conns    *metrics.Gauge // nil for an upstream
	accepted atomic.Uint64
	refused  map[reason]*metrics.Counter   // constant
	proxies  atomic.Pointer[proxyCounters] // nil for an upstream, and until the listener has proxies
	tls      atomic.Pointer[tlsCounters]   // nil until a connection is switched to TLS
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

// counters returns the counters of the listener or upstream with this name. It creates them at
// first use. A listener that is closed and opened again keeps its counters.
func (e *Engine) counters(of side, name string) *counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := countersKey{of, name}
	if c := e.counted[key]; c != nil {
		return c
	}
	r, m := e.metrics, metricsOf[of]
	c := &counters{
		name:     name,
		log:      refusalLog{log: e.log, side: of},
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
	e.counted[key] = c
	return c
}

// ForgetUpstream drops the counters of an upstream that has ended. The caller has the registry forget
// their series.
func (e *Engine) ForgetUpstream(name string) { e.forget(ofUpstream, name) }

// ForgetListener does for a listener what ForgetUpstream does for an upstream.
func (e *Engine) ForgetListener(name string) { e.forget(ofListener, name) }

func (e *Engine) forget(of side, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.counted, countersKey{of, name})
}

// refuse counts and logs a connection that a Listener did not admit. proxy is the proxy that has made it for
// peer, or the zero AddrPort.
func (c *counters) refuse(peer, proxy netip.AddrPort, why reason, err error) {
	c.refused[why].Inc()
	c.log.refuse(c.name, peer, proxy, why, err)
}

// closed counts and logs a Conn that closes itself.
func (c *counters) closed(peer netip.AddrPort, err *recordError) {
	c.refused[err.reason].Inc()
	c.log.close(c.name, peer, err.reason, err)
}

// A refusalLog writes a bounded number of lines.
type refusalLog struct {
	log             zerolog.Logger
	side            side
	refused, closed loglimit.Limit
}

// refuse logs a connection that was not admitted.
func (l *refusalLog) refuse(name string, peer, proxy netip.AddrPort, why reason, err error) {
	e := l.refused.Line(&l.log, zerolog.WarnLevel, "client_refused").Str(string(l.side), name).Stringer("peer", peer)
	if proxy.IsValid() {
		e = e.Stringer("proxy", proxy)
	}
	e.Str("reason", string(why)).Err(err).Msg("connection refused")
}

// close logs a connection that closes itself.
func (l *refusalLog) close(name string, peer netip.AddrPort, why reason, err error) {
	event := "client_closed"
	if l.side == ofUpstream {
		event = "reply_refused"
	}
	l.closed.Line(&l.log, zerolog.WarnLevel, event).Str(string(l.side), name).Stringer("peer", peer).Str("reason", string(why)).Err(err).Msg("connection closed")
}

// Refused adds to all how many connections of the listener with this name the Engine has refused or closed
// so far, by reason.
func (e *Engine) Refused(listener string, all map[string]uint64) {
	e.mu.Lock()
	c := e.counted[countersKey{ofListener, listener}]
	e.mu.Unlock()
	if c == nil {
		return
	}
	for why, n := range c.refused {
		if n := n.Value(); n > 0 {
			all[string(why)] += n
		}
	}
}
