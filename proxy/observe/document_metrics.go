package observe

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// DocumentMetrics are the metrics whose values are those of the document that the status page and the
// commands show. They are set at each scrape, so that both agree. A series ends when the document does not have
// its listener, upstream or endpoint any more.
type DocumentMetrics struct {
	registry *metrics.Registry

	mu    sync.Mutex // guards the rest; a leaf
	round uint64     // counts the scrapes
	made  map[string]*documentSeries
	tcp   map[string]status.TCP // what was counted last, by upstream
}

// A documentSeries is one series.
type documentSeries struct {
	def    *metrics.Definition
	values []string
	round  uint64 // of the document that had it last
}

// NewDocumentMetrics returns the metrics of a process.
func NewDocumentMetrics(r *metrics.Registry) *DocumentMetrics {
	return &DocumentMetrics{registry: r, made: make(map[string]*documentSeries), tcp: make(map[string]status.TCP)}
}

// Set makes d the present document.
func (m *DocumentMetrics) Set(d *status.Document) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.round++
	for _, s := range []status.State{status.Ready, status.NotReady, status.Draining} {
		m.gauge(metrics.State, metrics.Truth(d.State == s), string(s))
	}
	for i := range d.Listeners {
		m.listener(&d.Listeners[i])
	}
	for i := range d.Upstreams {
		m.upstream(&d.Upstreams[i])
	}
	maps.DeleteFunc(m.tcp, func(name string, _ status.TCP) bool {
		return !slices.ContainsFunc(d.Upstreams, func(u status.Upstream) bool { return u.Name == name })
	})
	for i := range d.Tenants {
		m.tenant(&d.Tenants[i])
	}
	for i := range d.Memory.Accounts {
		a := &d.Memory.Accounts[i]
		m.gauge(metrics.MemoryAccountUsedBytes, a.Used, a.Name)
		m.gauge(metrics.MemoryAccountLimitBytes, a.Limit, a.Name)
		m.gauge(metrics.MemoryAccountPeakBytes, a.Peak, a.Name)
		m.gauge(metrics.MemoryAccountWaitingConnections, int64(a.Waiting), a.Name)
		m.reach(metrics.MemoryAccountRefusedLeases, a.Refused, a.Name)
	}
	for key, s := range m.made {
		if s.round != m.round {
			m.registry.End(s.def, s.values...)
			delete(m.made, key)
		}
	}
}

func (m *DocumentMetrics) listener(l *status.Listener) {
	m.gauge(metrics.ListenerUp, metrics.Truth(l.Unreachable == ""), l.Name)
	m.gauge(metrics.ListenerClientsLimit, int64(l.Limit), l.Name)
	m.gauge(metrics.ListenerOutstandingCalls, int64(l.InFlight), l.Name)
	m.reach(metrics.ListenerAcceptedConnections, l.Accepted, l.Name)
	for _, reason := range metrics.ListenerPausedClients.Labels[1].Values {
		m.gauge(metrics.ListenerPausedClients, int64(l.Paused[reason.Name]), l.Name, reason.Name)
	}
}

func (m *DocumentMetrics) tenant(t *status.Tenant) {
	m.gauge(metrics.TenantClients, int64(t.Clients), t.Name)
	m.gauge(metrics.TenantAddresses, int64(t.Addresses), t.Name)
	m.gauge(metrics.TenantOutstandingCalls, int64(t.InFlight), t.Name)
	m.gauge(metrics.TenantMemoryBytes, t.Memory, t.Name)
	for _, limit := range metrics.TenantWaitingClients.Labels[1].Values {
		m.gauge(metrics.TenantWaitingClients, int64(t.Waiting[limit.Name]), t.Name, limit.Name)
	}
}

func (m *DocumentMetrics) upstream(u *status.Upstream) {
	for _, s := range []status.UpstreamState{status.Up, status.Degraded, status.Down, status.Asleep} {
		m.gauge(metrics.UpstreamState, metrics.Truth(u.State == s), u.Name, string(s))
	}
	m.gauge(metrics.UpstreamWantedConnections, int64(u.Wanted), u.Name)
	m.gauge(metrics.UpstreamCreditsRequested, int64(u.Credits.Requested), u.Name)
	m.reach(metrics.UpstreamCreditsStarvedSeconds, uint64(u.Credits.Starved*1e9), u.Name)
	m.gauge(metrics.UpstreamOldestCallSeconds, int64(u.OldestCall*1e9), u.Name)
	for _, fault := range metrics.UpstreamFault.Labels[1].Values {
		is := u.State == status.Down && u.Fault == fault.Name || u.TooWeak && fault.Name == status.CodeTLS
		m.gauge(metrics.UpstreamFault, metrics.Truth(is), u.Name, fault.Name)
	}
	for i := range u.Endpoints {
		e := &u.Endpoints[i]
		m.gauge(metrics.UpstreamEndpointEjected, metrics.Truth(e.State == status.EndpointEjected), u.Name, e.Address)
		m.gauge(metrics.UpstreamEndpointConnections, int64(e.Connections), u.Name, e.Address)
	}
	m.network(u)
}

// network sets what the kernel knows of the connections of u. It counts for each connection, and the document
// has the sum over those that are there now. So a sum that falls counts as it is from then on.
func (m *DocumentMetrics) network(u *status.Upstream) {
	if u.TCP == nil {
		delete(m.tcp, u.Name)
		return
	}
	now, before := *u.TCP, m.tcp[u.Name]
	m.tcp[u.Name] = now
	m.gauge(metrics.UpstreamTCPRTTSeconds, int64(now.RTT*1e9), u.Name)
	m.gauge(metrics.UpstreamTCPUnsentBytes, int64(now.Unsent), u.Name)
	for _, c := range []struct {
		def         metrics.CounterDef
		now, before uint64
	}{
		{metrics.UpstreamTCPSentSegments, now.Segments, before.Segments},
		{metrics.UpstreamTCPRetransmittedSegments, now.Retransmits, before.Retransmits},
		{metrics.UpstreamTCPNeedlessSegments, now.Needless, before.Needless},
		{metrics.UpstreamTCPReceivedSegments, now.Received, before.Received},
		{metrics.UpstreamTCPOutOfOrderSegments, now.OutOfOrder, before.OutOfOrder},
	} {
		m.series(c.def.Definition, u.Name)
		if total := m.registry.Counter(c.def, u.Name); c.now > c.before {
			total.Add(c.now - c.before)
		}
	}
}

func (m *DocumentMetrics) gauge(d metrics.GaugeDef, v int64, values ...string) {
	m.series(d.Definition, values...)
	m.registry.Gauge(d, values...).Set(v)
}

// reach sets a counter that the document has so far.
func (m *DocumentMetrics) reach(d metrics.CounterDef, v uint64, values ...string) {
	m.series(d.Definition, values...)
	m.registry.Counter(d, values...).Reach(v)
}

// series notes that the document has a series. The registry has it, and not m: it may have forgotten it when
// one reload removed the upstream and another brought it back, with no scrape between them.
func (m *DocumentMetrics) series(d *metrics.Definition, values ...string) {
	key := d.Name + "\x00" + strings.Join(values, "\x00")
	s := m.made[key]
	if s == nil {
		s = &documentSeries{def: d, values: slices.Clone(values)}
		m.made[key] = s
	}
	s.round = m.round
}
