package pool

import (
	"sync"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// Metrics are the series of one upstream, which may have several pools: gauges
// are sums over those that were started and not closed. A nil *Metrics counts
// nothing.
type Metrics struct {
	connections *metrics.Gauge
	queued      *metrics.Gauge
	reconnects  *metrics.Counter
	dialErrors  *metrics.Counter
	expired     *metrics.Counter
	waits       *metrics.Histogram

	mu    sync.Mutex // guards pools; a leaf
	pools map[*Pool]struct{}
}

// NewMetrics makes the series of one upstream, but for those of Describe.
func NewMetrics(reg *metrics.Registry, upstream string) *Metrics {
	m := &Metrics{
		connections: reg.Gauge("upstream_connections", "Usable connections to the upstream.", "upstream", upstream),
		queued:      reg.Gauge("upstream_queued_calls", "Calls that wait for a credit.", "upstream", upstream),
		reconnects:  reg.Counter("upstream_connects_total", "Connections to the upstream that came up.", "upstream", upstream),
		dialErrors:  reg.Counter("upstream_dial_errors_total", "Attempts to connect that failed.", "upstream", upstream),
		expired:     reg.Counter("upstream_queue_expired_calls_total", "Calls that ended in the queue.", "upstream", upstream),
		waits:       reg.Histogram("upstream_credit_wait_seconds", "Time that queued Calls waited for a credit.", metrics.LatencyBounds, 1e-9, "upstream", upstream),
	}
	return m
}

// Describe makes the series that are sums over m's pools. They take the place of those
// of the same upstream that were made before.
func (m *Metrics) Describe(reg *metrics.Registry, upstream string) {
	sum := func(name, help string, of func(*Seat) int) {
		reg.GaugeFunc(name, help, func() float64 { return float64(m.sum(of)) }, "upstream", upstream)
	}
	sum("upstream_credits_granted", "Sum of the grants of the usable connections.", func(s *Seat) int { return s.grant })
	sum("upstream_credits_in_use", "Calls outstanding at the upstream.", func(s *Seat) int { return s.inUse })
}

func (m *Metrics) join(p *Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pools == nil {
		m.pools = make(map[*Pool]struct{})
	}
	m.pools[p] = struct{}{}
}

func (m *Metrics) leave(p *Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pools, p)
}

// sum adds up what of says about every seat that has a connection.
func (m *Metrics) sum(of func(*Seat) int) (n int) {
	m.mu.Lock()
	pools := make([]*Pool, 0, len(m.pools))
	for p := range m.pools {
		pools = append(pools, p)
	}
	m.mu.Unlock()
	for _, p := range pools {
		p.mu.Lock()
		for _, s := range p.seats {
			if s.member != nil {
				n += of(s)
			}
		}
		p.mu.Unlock()
	}
	return n
}
