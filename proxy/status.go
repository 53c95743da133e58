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
// problems, and its history. Any goroutine, but no loop.
func (p *Proxy) Status(q status.Query) status.Document {
	d := status.Document{Time: time.Now(), State: status.Ready, Memory: p.memoryStatus()}
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	if err := p.Ready(); err != nil {
		d.State, d.NotReady = status.NotReady, err.Error()
	}
	if draining {
		d.State = status.Draining
	}
	for _, l := range p.currentListeners() {
		d.Listeners = append(d.Listeners, l.status())
		d.Clients.Total += l.clientCount()
	}
	for _, u := range p.sortedUpstreams() {
		d.Upstreams = append(d.Upstreams, u.status(q.Connections))
	}
	return d
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

func (l *listener) status() status.Listener {
	return status.Listener{
		Name: l.name, Transport: transport(l.isRDMA), Address: l.addr(), Clients: l.clientCount(),
		Limit: l.settings().opts.MaxConnections,
	}
}

// status describes u, and each connection if all is set.
func (u *upstream) status(all bool) status.Upstream {
	st, o := u.stats(), u.settings()
	d := status.Upstream{
		Name: u.name, Transport: transport(u.isRDMA), Mode: o.Mode.String(), State: st.state(),
		Endpoints: u.endpoints.status(&st),
		Credits:   st.credits, Usable: st.usable, Wanted: st.wanted, Asleep: st.asleep,
		Pinned: u.pins.count(), Sessions: u.table.count(), InFlight: st.credits.Used + st.credits.Waiting,
		LastError: st.lastError,
	}
	if !st.downSince.IsZero() {
		d.DownSince = &st.downSince
	}
	for _, e := range d.Endpoints {
		if e.State == status.EndpointEjected && d.State == status.Up {
			d.State = status.Degraded
		}
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
	}
	switch {
	case s.Up && m != nil && m.stalled():
		c.State = status.ConnectionStalled
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

// status describes the endpoints.
func (e *endpoints) status(st *upstreamStats) (all []status.Endpoint) {
	hs := e.apart
	if len(hs) == 0 {
		hs = []*pool.Health{e.health}
	}
	for _, h := range hs {
		for _, s := range h.Stats() {
			d := status.Endpoint{Address: s.Address, State: status.EndpointUsed, Connections: s.Connections}
			switch {
			case !s.Ejected.IsZero():
				d.State, d.Until = status.EndpointEjected, &s.Ejected
			case s.Standby:
				d.State = status.EndpointStandby
			}
			all = append(all, d)
		}
	}
	return all
}
