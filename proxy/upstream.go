package proxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// An upstreamConn is one connection to an upstream. Its own methods run on its loop.
type upstreamConn interface {
	pool.Member
	// send sends c, which holds a credit, or calls c.unsent.
	send(c *call)
	// credits is how many Calls may be outstanding now.
	credits() int
	// oldestCall is for how long the Call that was sent first has been outstanding; 0 if none is.
	oldestCall() time.Duration
	// network is what the kernel knows of the connection.
	network() (loop.TCP, bool)
	// security is what the server's certificate says; nil without TLS.
	security() *status.TLS
	// local is the bridge's address and port. Any goroutine.
	local() string
	// stalled reports whether the server answers nothing. Any goroutine.
	stalled() bool
}

// An upstream is where Calls go: a server, or several, with the pools of connections to it.
type upstream struct {
	p       *Proxy
	name    string // constant, as are isRDMA and number
	isRDMA  bool
	number  int // stands for the name among the Calls in flight
	log     zerolog.Logger
	pools   []*pool.Pool // of the shared connections: one pool, or one for each endpoint
	pins    pins         // the pinned connections
	lanes   lanes        // the connections that NFSv4.1 clients share
	table   *sessionTable
	parting parting

	laneCalls laneMetrics

	endpoints endpoints
	addresses addresses // of endpoints that are names

	current atomic.Pointer[UpstreamOptions] // the settings in force; update replaces the value and never changes it
	under   []underWay                      // by the index of the loop, which owns its element

	contexts gssContexts

	poolMetrics *pool.Metrics
	counts      []upstreamCounts // by the index of the loop, which counts in its element

	replayed       *metrics.Counter
	retried        *metrics.Counter
	collided       *metrics.Counter
	replied        *metrics.Counter // the sum of those in counts
	lost           *metrics.Counter
	errored        *metrics.Counter
	stray          *metrics.Counter
	back           *callbackMetrics            // nil for RDMA
	refusedReplies map[string]*metrics.Counter // by reason; nil for RDMA
	source         *sources                    // nil for RDMA
	tls            tlsFiles                    // of TCP alone, as are secure and tlsMissing
	secure         secureConns

	tlsMissing struct{ refused, plain *metrics.Counter } // connections whose server does not offer TLS
	unpinned   *metrics.Counter
	leaked     *metrics.Counter
	ends       [endReasons]*metrics.Counter
	probes     *probeMetrics

	average atomic.Int64 // octets that recent Replies without a bound had, on average

	slowStart *pool.SlowStart
	admission *admission
	lines     upstreamLines
	refusals  rdmaside.RequesterLines
}

// upstreamCounts count the Calls on the connections of one loop.
type upstreamCounts struct {
	sent      *metrics.Counter
	replied   *metrics.Counter
	phases    [phases]*metrics.Histogram // counted on the client's loop, of Calls that were answered
	requester *rdmaside.RequesterMetrics // nil for TCP
}

func newUpstreamCounts(m *metrics.Registry, o *UpstreamOptions) upstreamCounts {
	c := upstreamCounts{
		sent:    m.Counter(metrics.UpstreamSentCalls, o.Name),
		replied: outcome(m, o.Name, "replied"),
	}
	for i, name := range phaseNames {
		c.phases[i] = m.Histogram(metrics.UpstreamPhaseSeconds, o.Name, name)
	}
	if o.RDMA {
		c.requester = rdmaside.NewRequesterMetrics(m, o.Name)
	}
	return c
}

// outcome returns the counter of the Calls that ended like this at the upstream.
func outcome(m *metrics.Registry, upstream, how string) *metrics.Counter {
	return m.Counter(metrics.UpstreamCalls, upstream, how)
}

// An underWay counts the Calls of one loop's clients to an upstream. Each
// element belongs to its loop.
type underWay struct {
	n int
	_ [56]byte // loops do not share a cache line
}

// newUpstream makes an upstream that is not connected yet.
func newUpstream(p *Proxy, o UpstreamOptions) (*upstream, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m := p.metrics
	u := &upstream{
		p: p, name: o.Name, isRDMA: o.RDMA, number: p.number(o.Name),
		log:      p.log.With().Str("upstream", o.Name).Logger(),
		replayed: m.Counter(metrics.UpstreamReplays, o.Name),
		retried:  m.Counter(metrics.UpstreamRetries, o.Name),
		collided: m.Counter(metrics.UpstreamXIDCollisions, o.Name),
		replied:  outcome(m, o.Name, "replied"),
		lost:     outcome(m, o.Name, "lost"),
		errored:  outcome(m, o.Name, "error"),
		stray:    m.Counter(metrics.UpstreamStrayReplies, o.Name),
		unpinned: m.Counter(metrics.UpstreamPinnedRefusedClients, o.Name),
		leaked:   m.Counter(metrics.UpstreamLeakedCredits, o.Name),
		ends:     newEnds(m, o.Name),
		probes:   newProbeMetrics(m, o.Name),
	}
	u.lines.log, u.lines.draining = &u.log, &p.drains
	u.current.Store(&o)
	u.table, u.laneCalls = newSessionTable(p.engine.Now), newLaneMetrics(m, o.Name)
	u.table.log, u.table.evicted = u.log, m.Counter(metrics.UpstreamEvictedSessions, o.Name)
	u.under = make([]underWay, len(p.loops))
	for _, l := range p.loops {
		u.counts = append(u.counts, newUpstreamCounts(l.metrics, &o))
	}
	if !o.RDMA {
		u.back, u.refusedReplies = newCallbackMetrics(m, o.Name), newRefusedReplies(m, o.Name)
		u.source = newSources(o.Name, o.Source, m.Counter(metrics.UpstreamSourcePortChanges, o.Name))
	}
	if o.TLS != nil {
		u.countTLS(m)
	}
	u.contexts.init(u, m)
	u.poolMetrics = pool.NewMetrics(m, o.Name)
	u.slowStart = pool.NewSlowStart(o.SlowStart, slowStartOctetsOf(p.arena.Budget()))
	u.admission = newAdmission(m, o.Name, u.slowStart, p.engine.Now, func() time.Duration { return u.settings().UnavailableAfter })
	u.newEndpoints(m, &o)
	u.pins.quota = pool.NewQuota(len(p.loops))
	u.pins.quota.Set(o.pinnedCalls())
	u.pins.makesRoom = m.Counter(metrics.UpstreamPinnedEvictedClients, o.Name)
	n := 1
	if o.partitioned() {
		n = len(o.Endpoints)
	}
	for i := range n {
		up, err := pool.New(u.poolOptions(&o, i), u, u)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		u.pools = append(u.pools, up)
	}
	if err := u.setLanes(&o); err != nil {
		return nil, err
	}
	return u, nil
}

// describe registers the gauges that read u. They replace those of an earlier upstream of
// the same name.
func (u *upstream) describe() {
	m := u.p.metrics
	m.GaugeFunc(metrics.UpstreamPinnedConnections, func() float64 { return float64(u.pins.count()) }, u.name)
	m.GaugeFunc(metrics.UpstreamSessions, func() float64 { return float64(u.table.count()) }, u.name)
	u.poolMetrics.Describe(m, u.name)
	u.admission.describe(m, u.name)
	u.endpoints.describe(m, u.name)
	if u.settings().TLS != nil {
		u.describeTLS()
	}
}

// number returns the number that stands for the name of an upstream. An upstream that replaces
// another one of its name has the same number, so that
// flights.enter recognises retransmissions of the Calls that went to the other.
func (p *Proxy) number(name string) int {
	n, ok := p.numbers[name]
	if !ok {
		n = p.numbered
		p.numbered++
		p.numbers[name] = n
	}
	return n
}

// settings returns the settings in force. Any goroutine.
func (u *upstream) settings() *UpstreamOptions { return u.current.Load() }

// close ends the connections and every Call that waits for one. It waits for the loops.
func (u *upstream) close() {
	u.pins.close()
	u.closeLanes()
	for _, p := range u.pools {
		p.Close()
	}
	u.lines.keep()
}

// queueLimit is the most Calls that may wait in one pool.
const queueLimit = 1 << 16

// poolOptions are the options of u.pools[i].
func (u *upstream) poolOptions(o *UpstreamOptions, i int) pool.Options {
	po := pool.Options{
		Name: o.Name, Endpoints: o.Endpoints, Connections: o.Connections, Loops: len(u.p.loops),
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, DialTimeout: o.ConnectTimeout, QueueWait: o.UnavailableAfter, QueueLimit: queueLimit, Idle: o.Idle,
		SlowStart: u.slowStart, Share: o.Share, Witness: u.pins.quota,
		Failed:    u.lines.failed,
		Scarce:    u.lines.scarce,
		Connected: u.lines.connected,
		Discarded: u.discarded,
		HostGone:  gone,
		Local:     isLocal,
		Dials:     u.endpoints.share,
		Metrics:   u.poolMetrics,
	}
	if !u.isRDMA {
		po.Improve = u.source.astray
	}
	if o.partitioned() {
		n := len(o.Endpoints)
		po.Endpoints = o.Endpoints[i : i+1]
		po.Connections = (o.Connections + n - 1) / n
		po.Health = u.endpoints.apart[i]
	} else {
		po.Health = u.endpoints.health
	}
	return po
}

// discarded gives back the source port of a seat that dials no more.
func (u *upstream) discarded(s *pool.Seat) {
	if !u.isRDMA {
		u.source.leave(s)
	}
}

// update puts the settings o in force. Shared connections that would be made differently now are
// replaced one after the other, each when its Calls are answered. Pinned connections stay.
func (u *upstream) update(o UpstreamOptions) {
	old := u.settings()
	if o.laneCount() > old.laneCount() {
		u.mustSetLanes(&o) // before a Call needs one
	}
	u.current.Store(&o)
	renew := old.Provider != o.Provider || old.Credits != o.Credits || old.CallTimeout != o.CallTimeout ||
		old.CallInline != o.CallInline || old.ReplyInline != o.ReplyInline ||
		old.SilentTimeout != o.SilentTimeout || (old.ProbeInterval > 0) != (o.ProbeInterval > 0)
	u.lines.keep(o.Endpoints...)
	u.addresses.keep(o.Endpoints)
	u.endpoints.health.Set(o.Endpoints, o.Priority)
	for i, p := range u.pools {
		p.Update(u.poolOptions(&o, i), renew)
	}
	u.pins.update(&o)
	u.updateLanes(&o, renew)
}

// Dial makes one connection. pool.Dialer.
func (u *upstream) Dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat) (pool.Member, error) {
	return u.dial(ctx, endpoint, affinity, s, nil)
}

// dial makes a connection, for owner unless that is nil.
func (u *upstream) dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat, owner connOwner) (pool.Member, error) {
	l := u.p.loops[affinity]
	return u.addresses.dialEach(ctx, endpoint, s, func(ctx context.Context, addr string, t *addressTrial) (pool.Member, error) {
		if u.isRDMA {
			return dialRDMA(ctx, u, l, addr, t, s, owner)
		}
		return dialTCP(ctx, u, l, endpoint, addr, t, s, owner)
	})
}

// dispatch has m send the call of e, which holds a credit of m, on m's loop l. here is the
// number of the calling loop: if that is l, m sends the call at once.
func dispatch(e *pool.Entry, m upstreamConn, l *eventLoop, here int) {
	c := e.Owner.(*call)
	c.conn = m
	c.setState(callDispatched)
	if l.index == here {
		m.send(c)
		return
	}
	l.Post(c)
}

// observe counts an answered Call, on the loop of its connection, which is number here.
func (u *upstream) observe(c *call, here int) {
	n := &u.counts[here]
	n.sent.Inc()
	n.replied.Inc()
	u.probes.spoke(c.h.Program, c.h.Version)
	if c.rdma.Analysis.Known {
		return
	}
	size := int64(octets(c.reply.parts))
	old := u.average.Load()
	u.average.Store(old + (size-old)/16) // losing another loop's update does no harm
}

// expect is how many octets a client is charged for the Reply while its Call is under way.
// That is the Reply's bound if it has one. Otherwise it is the average of recent Replies
// without a bound, and no less than the client's own took lately. It is never below
// leastExpected, so that a client cannot ask for a thousand small Replies and then for as
// many large ones.
func (u *upstream) expect(a *ulb.Analysis, lately int) int {
	if a.Known {
		return int(a.MaxReply)
	}
	return int(min(max(u.average.Load(), int64(lately), leastExpected), int64(a.MaxReply)))
}

// cost is what a Call of n octets and its Reply weigh in the queue.
func (u *upstream) cost(n int, a *ulb.Analysis) int {
	if a.Known {
		return n + int(a.MaxReply)
	}
	return n + int(u.average.Load())
}

// leastExpected is how many octets a Reply without a bound is expected to have at least.
const leastExpected = 64 << 10
