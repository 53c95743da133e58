package pool

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// Metrics are the metrics of one upstream, which may have several pools. Gauges are sums
// over the pools that were started and not closed.
type Metrics struct {
	connections *metrics.Gauge
	queued      *metrics.Gauge
	reconnects  *metrics.Counter
	dialErrors  *metrics.Counter
	expired     *metrics.Counter
	shareWaits  *metrics.Counter

	mu      sync.Mutex // guards the rest; a leaf, not held while the mutex of a Pool is taken
	pools   map[*Pool]struct{}
	starved time.Duration // of pools that have left
}

// NewMetrics registers the metrics of an upstream, except those that Describe registers.
func NewMetrics(reg *metrics.Registry, upstream string) *Metrics {
	return &Metrics{
		connections: reg.Gauge(metrics.UpstreamConnections, upstream),
		queued:      reg.Gauge(metrics.UpstreamQueuedCalls, upstream),
		reconnects:  reg.Counter(metrics.UpstreamConnects, upstream),
		dialErrors:  reg.Counter(metrics.UpstreamDialErrors, upstream),
		expired:     reg.Counter(metrics.UpstreamQueueExpiredCalls, upstream),
		shareWaits:  reg.Counter(metrics.UpstreamShareWaits, upstream),
	}
}

// Describe registers the gauges that are sums over the pools of m. They replace those
// that an earlier upstream of the same name registered.
func (m *Metrics) Describe(reg *metrics.Registry, upstream string) {
	sum := func(d metrics.GaugeDef, of func(*Pool) int) {
		reg.GaugeFunc(d, func() float64 { return float64(m.sum(of)) }, upstream)
	}
	sum(metrics.UpstreamCreditsGranted, func(p *Pool) int { return p.credits })
	sum(metrics.UpstreamStuckCalls, (*Pool).old)
	sum(metrics.UpstreamAsleepConnections, func(p *Pool) int { return p.asleep })
	sum(metrics.UpstreamCreditsUsed, func(p *Pool) int { return p.inUse })
}

// join adds p to the pools of m.
func (m *Metrics) join(p *Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pools == nil {
		m.pools = map[*Pool]struct{}{}
	}
	m.pools[p] = struct{}{}
}

// leave removes p, in which Calls waited for so long, from the pools of m.
func (m *Metrics) leave(p *Pool, starved time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.pools[p]; ok {
		delete(m.pools, p)
		m.starved += starved
	}
}

// Starved is for how long Calls have waited in pools that are closed.
func (m *Metrics) Starved() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.starved
}

// sum adds up what of returns for every pool, whose lock it holds.
func (m *Metrics) sum(of func(*Pool) int) (n int) {
	m.mu.Lock()
	pools := slices.Collect(maps.Keys(m.pools))
	m.mu.Unlock()
	for _, p := range pools {
		p.mu.Lock()
		n += of(p)
		p.mu.Unlock()
	}
	return n
}

// DialErrors is how many attempts to connect have failed so far.
func (m *Metrics) DialErrors() uint64 { return m.dialErrors.Value() }

// Stuck is how many Calls have not been answered for a second or two.
func (m *Metrics) Stuck() int { return m.sum((*Pool).old) }
