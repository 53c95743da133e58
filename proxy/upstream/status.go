package upstream

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/certs"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// Status describes u, and each connection if all is set.
func (u *Upstream) Status(by *observe.Asker, all bool, ops []status.Operation) status.Upstream {
	st, o := u.stats(), u.Settings()
	st.ask(by, len(u.Loops))
	d := status.Upstream{
		Name: u.Name, Transport: observe.Transport(u.IsRDMA), Mode: o.Mode.String(), State: st.state(),
		Endpoints: u.Endpoints.Status(),
		Credits:   st.credits, Usable: st.usable, Wanted: st.wanted, Asleep: st.asleep,
		Pinned: u.Lanes.Pinned(), Sessions: u.Lanes.Table.Sessions(), LastError: text(st.lastError), Fault: fault(st.lastError), TooWeak: u.Watch.IsTooWeak(),
		Stuck: u.poolMetrics.Stuck(), Stalled: st.stalled, OldestCall: st.oldest.Seconds(), TCP: st.tcp,
		Calls: map[string]uint64{
			"replied": u.replied.Value(), "lost": u.failures[FailureLost].Value(), "error": u.failures[FailureError].Value(),
		},
		Disconnects: make(map[string]uint64), DialErrors: u.poolMetrics.DialErrors(),
		Replays: u.failures[FailureReplayed].Value(),
	}
	for i, reason := range endReasonNames {
		if n := u.Ends[i].Value(); n > 0 {
			d.Disconnects[reason] = n
		}
	}
	if !u.SlowStart.Over() {
		d.SlowStart = &status.SlowStart{Calls: u.SlowStart.Limit(), Clients: u.Admission.Clients()}
	}
	for i := range ops {
		if o := &ops[i]; o.Upstream == u.Name {
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
		d.TLS = certs.Status(o.TLS.Client.Condition())
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
	lastError              error // of the connection that was lost last, and has not come back
	errorAt                time.Time
	credited               int // what a connection asks for
	stalled                int // connections

	// The connections that are there, and their numbers in connections; ask sets the rest.
	members []Conn
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
func (u *Upstream) stats() upstreamStats {
	st := u.sharedStats()
	st.credits.Starved += u.poolMetrics.Starved().Seconds()
	u.Lanes.PinnedStats(func(s pool.Stats) { st.add(s, kindPinned, 1) })
	return st
}

// sharedStats adds up the statistics of the pools of connections that clients share.
func (u *Upstream) sharedStats() upstreamStats {
	st := upstreamStats{credited: u.Settings().Credits}
	for _, p := range u.pools {
		st.add(p.Stats(), kindShared, 0)
	}
	u.Lanes.Stats(func(s pool.Stats, clients int) { st.add(s, kindLane, clients) })
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
	why := s.LastError
	if why == nil && s.Mute {
		why = errMute
	}
	c := status.Connection{
		Kind: kind, Endpoint: s.Endpoint, State: status.ConnectionDown, Since: s.Since, Clients: clients,
		LastError: text(why),
		Credits:   status.Credits{Granted: s.Granted, Used: s.Outstanding},
	}
	m, _ := s.Member.(Conn)
	if m != nil {
		c.Local = m.Local()
		st.members, st.number = append(st.members, m), append(st.number, len(st.connections))
	}
	switch {
	case s.Up && m != nil && m.Stalled():
		c.State = status.ConnectionStalled
		st.stalled++
	case s.Up:
		c.State = status.ConnectionUp
	case s.Asleep:
		c.State = status.ConnectionAsleep
	}
	if s.Up {
		c.Credits.Requested = st.credited
	} else if why != nil && s.Since.After(st.errorAt) {
		st.lastError, st.errorAt = why, s.Since
	}
	st.connections = append(st.connections, c)
	return &st.connections[len(st.connections)-1]
}

// askedConnections is the most connections of an upstream that ask asks.
const askedConnections = 4096

// ask asks the loops about the connections.
func (st *upstreamStats) ask(by *observe.Asker, loops int) {
	byLoop := make([][]int, loops)
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
	by.Each(byLoop, func(i int) {
		m := st.members[i]
		found[i] = report{observe.TCPStatus(m.Network()), m.Security(), m.OldestCall()}
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

// IsDown reports whether u has no usable connection although one is needed.
func (u *Upstream) IsDown() bool {
	st := u.sharedStats()
	return st.usable == 0 && !st.sleeps()
}
