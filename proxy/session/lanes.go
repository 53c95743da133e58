package session

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/proxyheader"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/quota"
)

// errClosing reports a client that needs a lane of an upstream that has ended.
var errClosing = errors.New("proxy: closing")

// NewLanes returns lanes without settings: Set follows before the first Call needs one.
func NewLanes(o Options) *Lanes {
	m, name := o.Metrics, o.Upstream
	ls := &Lanes{
		o:         o,
		Table:     newTable(o.Now, *o.Log, m.Counter(metrics.UpstreamEvictedSessions, name)),
		callbacks: newCallbackMetrics(m, name),
		refused:   m.Counter(metrics.UpstreamPinnedRefusedClients, name),
	}
	ls.pinned.quota = quota.New(len(o.Loops))
	ls.pinned.makesRoom = m.Counter(metrics.UpstreamPinnedEvictedClients, name)
	return ls
}

// Describe registers the gauges that read ls. They replace those of an earlier upstream of the same name.
func (ls *Lanes) Describe() {
	m, name := ls.o.Metrics, ls.o.Upstream
	m.GaugeFunc(metrics.UpstreamPinnedConnections, func() float64 { return float64(ls.Pinned()) }, name)
	m.GaugeFunc(metrics.UpstreamSessions, func() float64 { return float64(ls.Table.Sessions()) }, name)
}

// Quota divides the Calls on pinned lanes among hosts. It is constant.
func (ls *Lanes) Quota() *quota.Quota { return ls.pinned.quota }

// Set puts the settings s in force and makes as many lanes as they ask for. Clients on lanes that are too many are
// closed when they are idle. Lanes that are there already keep their pools as they are: see Update.
func (ls *Lanes) Set(s *Settings) error {
	ls.pinned.quota.Set(s.QuotaCalls, s.QuotaAlways)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.settings = s
	if ls.closed {
		return nil
	}
	n := s.Lanes
	if n > 0 {
		n = max(n, min(n+ls.extra, signedLanes))
	}
	ls.extra = max(0, n-s.Lanes)
	for len(ls.all) < n {
		if _, err := ls.add(len(ls.all) % len(s.Endpoints)); err != nil {
			return err
		}
	}
	for len(ls.all) > n {
		last := len(ls.all) - 1
		l := ls.all[last]
		ls.all = ls.all[:last]
		l.leaving = true
		switch {
		case len(l.clients) > 0:
			ls.old = append(ls.old, l)
			l.disconnect(whenIdle, func(*Client) bool { return true })
		case l.started:
			ls.ending.Go(l.close)
		}
	}
	return nil
}

// add adds a lane that clients share, for an endpoint. mu is held.
func (ls *Lanes) add(endpoint int) (*Lane, error) {
	i, n := len(ls.all), len(ls.o.Loops)
	l, err := ls.newLane(laneOptions{
		endpoint: endpoint, loop: i % n, loops: n, ports: uint64(i), preamble: proxyheader.AppendLocal(nil),
		receives: sharedReceives, reverse: sharedReverse, calls: sharedCalls,
	})
	if err != nil {
		return nil, err
	}
	l.clients, l.hosts = make(map[*Client]struct{}), make(map[crowd.Host]int)
	ls.all = append(ls.all, l)
	return l, nil
}

// Update puts the settings s in force, which the pools of the shared connections have already. With renew, connections
// that would be made differently now are replaced, and their clients are closed when they are idle. Pinned connections
// stay, unless their server is no longer configured, because a client has to bind its session again when its connection
// is replaced.
func (ls *Lanes) Update(s *Settings, renew bool) {
	if err := ls.Set(s); err != nil {
		panic("BUG: proxy: " + err.Error())
	}
	ls.mu.Lock()
	all := slices.AppendSeq(slices.Clone(ls.all), ls.pinned.all())
	ls.mu.Unlock()
	for _, l := range all {
		l.pool.Update(l.poolOptions(s), renew && l.opts.only == nil)
	}
}

// Renew has the pools replace connections to endpoints that are ejected.
func (ls *Lanes) Renew() {
	for _, p := range slices.Concat(ls.sharedPools(), ls.pinnedPools()) {
		p.Renew()
	}
}

// sharedPools are the pools of the lanes that clients share and that have been used.
func (ls *Lanes) sharedPools() (ps []*pool.Pool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range slices.Concat(ls.all, ls.old) {
		if l.started {
			ps = append(ps, l.pool)
		}
	}
	return ps
}

// Stats calls f with the statistics of the pool of each lane that clients share, and with the number of its clients.
func (ls *Lanes) Stats(f func(s pool.Stats, clients int)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range slices.Concat(ls.all, ls.old) {
		if l.started {
			f(l.pool.Stats(), len(l.clients))
		}
	}
}

// Waiting is how many lanes wait for a server that does not answer.
func (ls *Lanes) Waiting() (n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.all {
		if l.waits() {
			n++
		}
	}
	return n
}

// Close ends every lane, and waits until all have ended.
func (ls *Lanes) Close() {
	ls.mu.Lock()
	ls.closed = true
	for l := range ls.pinned.all() {
		l.unpin()
	}
	ls.mu.Unlock()
	for _, p := range ls.sharedPools() {
		p.Close()
	}
	ls.ending.Wait()
	ls.disconnects.close()
}

// Refuse counts and logs the client at peer, which cannot have a lane.
func (ls *Lanes) Refuse(peer netip.AddrPort, reason error) {
	ls.refused.Inc()
	ls.refusals.Line(ls.o.Log, zerolog.WarnLevel, "client_closed").Str("reason", "no_pin").Stringer("peer", peer).
		Int64("pinned", ls.pinned.most.Load()).Err(reason).
		Msg("the upstream has no room for another pinned connection; client connection closed")
}
