package proxy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/pool"
)

// Status describes the Proxy. It fills in what the Proxy knows: not the process, its configuration, its
// problems, and its history. It asks the loops, and waits for them for a second at most. Any goroutine, but
// no loop.
func (p *Proxy) Status(q status.Query) status.Document {
	p.looking.Lock()
	defer p.looking.Unlock()
	d := status.Document{State: status.Ready}
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	if err := p.Ready(); err != nil {
		d.State, d.NotReady = status.NotReady, err.Error()
	}
	if draining {
		d.State = status.Draining
	}
	found := p.collect()
	d.Operations = p.operationStatus(found)
	for _, l := range p.currentListeners() {
		d.Listeners = append(d.Listeners, l.status(found, d.Operations))
	}
	d.Tenants = p.tenantStatus(found)
	for _, l := range p.allListeners() {
		d.Clients.Total += l.clientCount()
	}
	total := d.Clients.Total
	d.Clients = p.clients(found, &q)
	d.Clients.Total = total
	for _, u := range p.sortedUpstreams() {
		d.Upstreams = append(d.Upstreams, u.status(q.Connections, d.Operations))
	}
	d.Memory = p.memoryStatus()
	d.Time = time.Now()
	return d
}

// operationStatus describes all operations that were used.
func (p *Proxy) operationStatus(found []*collector) []status.Operation {
	list := p.operations.list()
	all := make([]status.Operation, 0, len(list))
	for _, s := range list {
		o := s.describe()
		for _, c := range found {
			o.InFlight += c.inFlight[s]
		}
		all = append(all, o)
	}
	return all
}

func (p *Proxy) memoryStatus() status.Memory {
	st := p.arena.Stats()
	m := status.Memory{Budget: st.Budget, Used: st.Used, Resident: st.Resident, Waiting: st.Waiting}
	for _, a := range st.Accounts {
		m.Accounts = append(m.Accounts, status.Account(a))
		m.Refused += a.Refused
	}
	return m
}

func (p *Proxy) sortedUpstreams() []*upstream {
	return slices.SortedFunc(maps.Values(p.allUpstreams()), func(a, b *upstream) int {
		return strings.Compare(a.name, b.name)
	})
}

// transport names the transport of a listener or an upstream.
func transport(isRDMA bool) string {
	if isRDMA {
		return "rdma"
	}
	return "tcp"
}

func (l *listener) status(found []*collector, ops []status.Operation) status.Listener {
	d := status.Listener{
		Name: l.name, Transport: transport(l.isRDMA), Address: l.addr(), Clients: l.clientCount(),
		Limit:  l.settings().opts.MaxConnections,
		Rules:  l.settings().policy.status(l, found, time.Now()),
		Paused: make(map[string]int), Calls: make(map[string]uint64), Refused: l.refusedStatus(), Accepted: l.accepted.Value(),
	}
	for _, c := range found {
		w := c.waiting[l]
		for i, n := range w.now {
			if n > 0 {
				d.Paused[waitNames[i]] += n
			}
		}
	}
	for i, name := range resultNames {
		if n := l.results[i].Value(); n > 0 {
			d.Calls[name] = n
		}
	}
	for i := range ops {
		if o := &ops[i]; o.Listener == l.name {
			d.InFlight += o.InFlight
			d.BytesIn += o.BytesIn
			d.BytesOut += o.BytesOut
		}
	}
	if t := l.settings().opts.TLS; t != nil {
		d.TLS = tlsFilesStatus(t.Server.Condition())
	}
	if d.Address == "" {
		d.Unreachable = "it does not listen"
	}
	return d
}

// status describes u, and each connection if all is set.
func (u *upstream) status(all bool, ops []status.Operation) status.Upstream {
	st, o := u.stats(), u.settings()
	u.p.askConnections(&st)
	d := status.Upstream{
		Name: u.name, Transport: transport(u.isRDMA), Mode: o.Mode.String(), State: st.state(),
		Endpoints: u.endpoints.status(&st),
		Credits:   st.credits, Usable: st.usable, Wanted: st.wanted, Asleep: st.asleep,
		Pinned: u.pins.count(), Sessions: u.table.count(), LastError: st.lastError,
		Stuck: u.poolMetrics.Stuck(), Stalled: st.stalled, OldestCall: st.oldest.Seconds(), TCP: st.tcp,
		Calls:       map[string]uint64{"replied": u.replied.Value(), "lost": u.lost.Value(), "error": u.errored.Value()},
		Disconnects: make(map[string]uint64), DialErrors: u.poolMetrics.DialErrors(), Replays: u.replayed.Value(),
	}
	for i, reason := range endReasonNames {
		if n := u.ends[i].Value(); n > 0 {
			d.Disconnects[reason] = n
		}
	}
	if !u.slowStart.Over() {
		d.SlowStart = &status.SlowStart{Calls: u.slowStart.Limit(), Clients: u.admission.clients()}
	}
	for i := range ops {
		if o := &ops[i]; o.Upstream == u.name {
			d.InFlight += o.InFlight
			d.BytesOut += o.BytesIn
			d.BytesIn += o.BytesOut
			d.Phases.Add(&o.Phases)
		}
	}
	if !st.downSince.IsZero() {
		d.DownSince = &st.downSince
	}
	for _, e := range d.Endpoints {
		if e.State == status.EndpointEjected && d.State == status.Up {
			d.State = status.Degraded
		}
	}
	if o.TLS != nil {
		d.TLS = tlsFilesStatus(o.TLS.Client.Condition())
	}
	if all {
		d.Connections = st.connections
	}
	return d
}

// upstreamStats are the statistics of all pools of an upstream.
type upstreamStats struct {
	usable, wanted, asleep int       // of the connections that clients share
	downSince              time.Time // zero unless no connection is there that should be
	credits                status.Credits
	connections            []status.Connection
	lastError              string // of the connection that was lost last, and has not come back
	errorAt                time.Time
	credited               int // what a connection asks for
	stalled                int // connections

	// The connections that are there, and their numbers in connections; askConnections sets the rest.
	members []upstreamConn
	number  []int
	oldest  time.Duration
	tcp     *status.TCP
}

// sleeps reports whether there is no connection because none is needed.
func (st *upstreamStats) sleeps() bool {
	return st.usable == 0 && st.asleep > 0 && st.downSince.IsZero()
}

func (st *upstreamStats) state() status.UpstreamState {
	switch {
	case st.sleeps():
		return status.Asleep
	case st.usable == 0:
		return status.Down
	case st.usable < st.wanted:
		return status.Degraded
	}
	return status.Up
}

// The kinds of connections to upstreams.
const (
	kindShared = "shared"
	kindLane   = "lane"
	kindPinned = "pinned"
)

// stats adds up the statistics of all pools.
func (u *upstream) stats() upstreamStats {
	st := u.sharedStats()
	st.credits.Starved += u.poolMetrics.Starved().Seconds()
	for _, p := range u.pins.pools() {
		st.add(p.Stats(), kindPinned, 1)
	}
	return st
}

// sharedStats adds up the statistics of the pools of connections that clients share.
func (u *upstream) sharedStats() upstreamStats {
	st := upstreamStats{credited: u.settings().Credits}
	for _, p := range u.pools {
		st.add(p.Stats(), kindShared, 0)
	}
	ls := &u.lanes
	ls.mu.Lock()
	for _, l := range slices.Concat(ls.all, ls.old) {
		if l.started {
			st.add(l.pool.Stats(), kindLane, len(l.clients))
		}
	}
	ls.mu.Unlock()
	if st.usable > 0 {
		st.downSince = time.Time{}
	}
	return st
}

// add adds the statistics of a pool of connections that have clients assigned.
func (st *upstreamStats) add(o pool.Stats, kind string, clients int) {
	st.credits.Requested += o.Usable * st.credited
	st.credits.Granted += o.Granted
	st.credits.Used += o.Outstanding
	st.credits.Waiting += o.Queued
	st.credits.Starved += o.Starved.Seconds()
	if kind != kindPinned {
		st.usable += o.Usable
		st.asleep += o.Asleep
		st.wanted += len(o.Connections) - o.Asleep
		if !o.Sleeps() && o.DownSince.After(st.downSince) {
			st.downSince = o.DownSince
		}
	}
	for i := range o.Connections {
		st.connection(&o.Connections[i], kind, clients)
	}
	for i := range o.Leaving {
		c := st.connection(&o.Leaving[i], kind, 0)
		c.State = status.ConnectionRetired
		st.credits.Used += c.Credits.Used
	}
}

// connection adds a connection.
func (st *upstreamStats) connection(s *pool.SeatStats, kind string, clients int) *status.Connection {
	c := status.Connection{
		Kind: kind, Endpoint: s.Endpoint, State: status.ConnectionDown, Since: s.Since, Clients: clients, LastError: s.LastError,
		Credits: status.Credits{Granted: s.Granted, Used: s.Outstanding},
	}
	m, _ := s.Member.(upstreamConn)
	if m != nil {
		c.Local = m.local()
		st.members, st.number = append(st.members, m), append(st.number, len(st.connections))
	}
	switch {
	case s.Up && m != nil && m.stalled():
		c.State = status.ConnectionStalled
		st.stalled++
	case s.Up:
		c.State = status.ConnectionUp
	case s.Asleep:
		c.State = status.ConnectionAsleep
	}
	if s.Up {
		c.Credits.Requested = st.credited
	} else if s.LastError != "" && s.Since.After(st.errorAt) {
		st.lastError, st.errorAt = s.LastError, s.Since
	}
	st.connections = append(st.connections, c)
	return &st.connections[len(st.connections)-1]
}

// askedConnections is the most connections of an upstream that askConnections asks.
const askedConnections = 4096

// askConnections asks the loops about the connections.
func (p *Proxy) askConnections(st *upstreamStats) {
	byLoop := make([][]int, len(p.loops))
	for i, m := range st.members[:min(len(st.members), askedConnections)] {
		n := m.Affinity()
		byLoop[n] = append(byLoop[n], i)
	}
	type report struct {
		tcp    *status.TCP
		tls    *status.TLS
		oldest time.Duration
	}
	found := make([]report, len(st.members))
	p.askLoops(byLoop, func(i int) {
		m := st.members[i]
		found[i] = report{tcpStatus(m.network()), m.security(), m.oldestCall()}
	}, func(i int) {
		r := &found[i]
		st.connections[st.number[i]].TCP, st.connections[st.number[i]].TLS = r.tcp, r.tls
		st.oldest = max(st.oldest, r.oldest)
		if r.tcp == nil {
			return
		}
		if st.tcp == nil {
			st.tcp = &status.TCP{}
		}
		st.tcp.Add(r.tcp)
	})
}

// status describes the endpoints.
func (e *endpoints) status(st *upstreamStats) (all []status.Endpoint) {
	hs := e.apart
	if len(hs) == 0 {
		hs = []*pool.Health{e.health}
	}
	for _, h := range hs {
		for _, s := range h.Stats() {
			d := status.Endpoint{Address: s.Address, State: status.EndpointUsed, Connections: s.Connections, Ejections: s.Ejections}
			switch {
			case s.IsEjected:
				d.State, d.Reason = status.EndpointEjected, s.Reason
				if !s.Ejected.IsZero() {
					d.Until = &s.Ejected
				}
			case s.Standby:
				d.State = status.EndpointStandby
			}
			all = append(all, d)
		}
	}
	return all
}
