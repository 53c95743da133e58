package tcpframe

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// counters are the series of one name: a listener's, or an upstream's.
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

// counters returns those of name, making them at first use: a listener may be
// closed and opened again.
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
		conns:    r.Gauge("tcp_connections", "TCP connections that are open.", "listener", name),
		accepted: r.Counter("tcp_accepted_total", "TCP connections accepted or dialled.", "listener", name),
		received: r.Counter("tcp_received_bytes_total", "Octets read from TCP connections.", "listener", name),
		sent:     r.Counter("tcp_sent_bytes_total", "Octets written to TCP connections.", "listener", name),
		copied:   metrics.Copied(r, "tcp", name),
		paused:   r.Gauge("tcp_paused_connections", "TCP connections that are not being read, for backpressure.", "listener", name),
		inbound:  r.Gauge("tcp_inbound_buffered_bytes", "Octets read that are not a whole record yet, or wait for a paused connection.", "listener", name),
		outbound: r.Gauge("tcp_outbound_buffered_bytes", "Octets that wait for TCP peers to read.", "listener", name),
		refused:  make(map[reason]*metrics.Counter),
	}
	r.CounterFunc("tcp_paused_seconds_total", "Time that TCP connections were not being read, summed.", func() float64 {
		return float64(c.pausedNs.Load()) / 1e9
	}, "listener", name)
	for _, reason := range reasons {
		c.refused[reason] = r.Counter("tcp_refused_total", "TCP connections turned away or ended from here.",
			"listener", name, "reason", string(reason))
	}
	e.counted[name] = c
	return c
}

// refuse counts and logs one refusal.
func (c *counters) refuse(peer netip.AddrPort, reason reason, err error) {
	c.refused[reason].Inc()
	c.log.line(c.name, peer, reason, err)
}

// refusalBurst is how many refusals one name logs per second.
const refusalBurst = 10

// A refusalLog writes a bounded number of lines.
type refusalLog struct {
	log zerolog.Logger

	mu         sync.Mutex // a leaf
	second     int64
	lines      int
	suppressed int
}

func (l *refusalLog) line(name string, peer netip.AddrPort, reason reason, err error) {
	l.mu.Lock()
	if now := time.Now().Unix(); now != l.second {
		l.second, l.lines = now, 0
	}
	if l.lines++; l.lines > refusalBurst {
		l.suppressed++
		l.mu.Unlock()
		return
	}
	suppressed := l.suppressed
	l.suppressed = 0
	l.mu.Unlock()

	ev := l.log.Warn().Str("listener", name).Stringer("peer", peer).Str("reason", string(reason))
	if suppressed > 0 {
		ev.Int("suppressed", suppressed)
	}
	ev.Err(err).Msg("connection refused")
}
