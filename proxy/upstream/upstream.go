// Package upstream has the place where Calls go: a server, or several that serve the same. An [Upstream] has the pools
// of connections, the lanes, and what is known of its endpoints, and puts other settings in force while it runs. It
// knows no Call and no client, and has its connections made by package proxy.
package upstream

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/certs"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/session"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A Conn is one connection to an upstream, as those see it who describe it. Its own methods run on its loop.
type Conn interface {
	pool.Member
	// OldestCall is for how long the Call that was sent first has been outstanding; 0 if none is.
	OldestCall() time.Duration
	// Network is what the kernel knows of the connection.
	Network() (loop.TCP, bool)
	// Security is what the server's certificate says; nil without TLS.
	Security() *status.TLS
	// Local is the bridge's address and port. Any goroutine.
	Local() string
	// Stalled reports whether the server answers nothing. Any goroutine.
	Stalled() bool
}

// A Loop is an event loop with what connections and counters on it use.
type Loop struct {
	loop.Loop
	Metrics *metrics.Registry // with the parts of counters for this loop
	Replies *regmem.Account   // with a stock for this loop
}

// A Context is what the upstreams of a Proxy share. It is constant.
type Context struct {
	Base     zerolog.Logger // that of the Proxy
	Metrics  *metrics.Registry
	Engine   *tcpframe.Engine
	Registry *ulb.Registry
	Loops    []Loop
	Hosts    *admit.Hosts
	Identity *identity.Bridge
	Flights  *identity.Flights
	Replies  *regmem.Account // memory for Replies
	XIDs     *identity.XIDs
	Budget   int64 // octets of all memory
	Slow     *admit.SlowReaders
	Draining *atomic.Bool
	Dials    *dials.Limiter
	LookUp   reach.LookUp                // nil for the host's resolver
	Owner    pool.Owner                  // learns of Calls that no connection has carried
	Connect  connect                     // makes connections
	Named    func(name string) *Upstream // the upstream that has this name in the configuration; nil for none
}

// A connect makes the connection d to u.
type connect func(ctx context.Context, u *Upstream, d *Dial) (pool.Member, error)

// A Dial is a connection that is being made.
type Dial struct {
	Endpoint string // as configured
	Addr     string // an address of Endpoint
	Loop     int    // the number of the loop that the connection belongs to
	Trial    *reach.Trial
	Seat     *pool.Seat
	Lane     *session.Conn // nil for a shared connection
}

// An Upstream is where Calls go: a server, or several, with the pools of connections to it.
type Upstream struct {
	Context

	Name   string // constant, as are IsRDMA and Number
	IsRDMA bool
	Number int // stands for the name among the Calls in flight

	Log       zerolog.Logger
	pools     []*pool.Pool    // of the shared connections: one pool, or one for each endpoint
	Lanes     *session.Lanes  // the connections that clients stay with
	LaneGroup admit.PoolGroup // of the lanes that clients share

	Endpoints *reach.Endpoints
	addresses *reach.Addresses // of Endpoints that are names

	current atomic.Pointer[settings.UpstreamOptions] // the settings in force; Update replaces the value
	underWay
	replyLengths

	GSSContexts *identity.GSSContexts

	poolMetrics *pool.Metrics
	Counts      []loopCounts // by the index of the loop, which counts in its element

	replied        *metrics.Counter // the sum of those in Counts
	failures       [failures]*metrics.Counter
	Stray          *metrics.Counter
	ServerCalls    *session.ServerCallMetrics  // nil for RDMA
	RefusedReplies map[string]*metrics.Counter // by reason; nil for RDMA
	Ports          *reach.Ports                // nil for RDMA
	tls            certs.Files                 // of TCP alone, as are Handshakes
	Handshakes     *reach.Handshakes           // nil without TLS

	Leaked *metrics.Counter
	Ends   endCounts
	Watch  *reach.Watch

	ended atomic.Bool // it was closed

	SlowStart         *slowstart.Window
	Admission         *admit.SlowStart
	lines             *reach.Lines
	RefusedCallLines  loglimit.Limit // lines about Calls that cannot be carried
	RefusedReplyLines loglimit.Limit // lines about Replies that are refused
	Refusals          rdmaside.RequesterLines
}

// New makes an upstream that is not connected yet. number stands for its name.
func New(x *Context, number int, o settings.UpstreamOptions) (*Upstream, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	m := x.Metrics
	u := &Upstream{
		Context: *x, Name: o.Name, IsRDMA: o.RDMA, Number: number,
		replied:  outcome(m, o.Name, "replied"),
		failures: newFailures(m, o.Name),
		Stray:    m.Counter(metrics.UpstreamStrayReplies, o.Name),
		Leaked:   m.Counter(metrics.UpstreamLeakedCredits, o.Name),
		Ends:     newEndCounts(m, o.Name),
	}
	u.Log = x.Base.With().Str("upstream", o.Name).Logger()
	u.lines = reach.NewLines(&u.Log, u.Draining)
	u.current.Store(&o)
	u.newLanes()
	u.addresses = reach.NewAddresses(u.LookUp)
	u.underWay = make(underWay, len(u.Loops))
	for _, l := range u.Loops {
		u.Counts = append(u.Counts, newLoopCounts(l.Metrics, &o))
	}
	if !o.RDMA {
		u.ServerCalls, u.RefusedReplies = session.NewServerCallMetrics(m, o.Name), newRefusedReplies(m, o.Name)
		u.Ports = reach.NewPorts(o.Name, o.Source, m.Counter(metrics.UpstreamSourcePortChanges, o.Name), &u.Log)
	}
	u.GSSContexts = newGSSContexts(u, m)
	u.poolMetrics = pool.NewMetrics(m, o.Name)
	u.SlowStart = slowstart.New(o.SlowStart, admit.SlowStartOctetsOf(u.Budget))
	u.Watch = reach.NewWatch(m, o.Name, &u.Log, u.XIDs.Fresh, u.SlowStart)
	u.Watch.Set(o.ProbeInterval, o.ProbeIdle)
	if o.TLS != nil {
		u.tls.Count(m, certs.OfUpstream, o.Name)
		u.Handshakes = reach.NewHandshakes(m, o.Name, u.Watch, u.lines)
	}
	u.Admission = admit.NewSlowStart(m, o.Name, u.SlowStart, u.Engine.Now, func() time.Duration {
		return u.Settings().UnavailableAfter
	})
	u.Endpoints = reach.NewEndpoints(reach.EndpointsOptions{
		Upstream: o.Name, Endpoints: o.Endpoints, Priority: o.Priority,
		Apart: o.Partitioned(), Dials: u.Dials.Share(), Metrics: m, Lines: u.lines, Renew: u.renew,
	})
	n := 1
	if o.Partitioned() {
		n = len(o.Endpoints)
	}
	for i := range n {
		up, err := pool.New(u.poolOptions(&o, i), u, u.Owner)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		u.pools = append(u.pools, up)
	}
	if err := u.Lanes.Set(u.laneSettings(&o)); err != nil {
		return nil, err
	}
	return u, nil
}

// Describe registers the gauges that read u. They replace those of an earlier upstream of
// the same name.
func (u *Upstream) Describe() {
	m := u.Metrics
	u.Lanes.Describe()
	u.poolMetrics.Describe(m, u.Name)
	u.Admission.Describe(m, u.Name)
	u.Endpoints.Describe(m)
	if u.Settings().TLS != nil {
		u.describeTLS()
	}
}

// describeTLS makes the series of an upstream with TLS. The next upstream of the name may have none.
func (u *Upstream) describeTLS() {
	named, name := u.Named, u.Name
	certs.Describe(u.Metrics, certs.OfUpstream, name, func() tlsconf.Condition {
		if u := named(name); u != nil && u.Settings().TLS != nil {
			return u.Settings().TLS.Client.Condition()
		}
		return tlsconf.Condition{}
	})
}

// RefreshTLS looks at the files of u, if it has TLS, as Proxy.RefreshTLS says.
func (u *Upstream) RefreshTLS(now bool, quit <-chan struct{}) {
	if t := u.Settings().TLS; t != nil && u.tls.Refresh(&u.Log, t.Client, now) {
		u.Handshakes.Recheck(t.Client, quit)
	}
}

// Settings returns the settings in force. Any goroutine.
func (u *Upstream) Settings() *settings.UpstreamOptions { return u.current.Load() }

// Start lets the pools dial.
func (u *Upstream) Start() {
	for _, p := range u.pools {
		p.Start()
	}
}

// renew has the pools of u replace connections to endpoints that are ejected.
func (u *Upstream) renew() {
	for _, p := range u.pools {
		p.Renew()
	}
	u.Lanes.Renew()
}

// Close ends the connections and every Call that waits for one. It waits for the loops.
func (u *Upstream) Close() {
	u.Lanes.Close()
	for _, p := range u.pools {
		p.Close()
	}
	u.lines.Keep()
	u.ended.Store(true)
}

// Ended reports whether u was closed: no Call goes to it any more. Any goroutine.
func (u *Upstream) Ended() bool { return u.ended.Load() }

// Abandoned logs that the upstream ends although so many of its Calls are under way.
func (u *Upstream) Abandoned(calls int) {
	u.Log.Warn().Str("event", "upstream_abandoned").Int("calls", calls).
		Msg("upstream removed with calls under way; their clients are closed")
}

// Removed logs that the upstream has ended, because it is no longer configured.
func (u *Upstream) Removed() {
	u.Log.Info().Str("event", "upstream_removed").Msg("upstream removed")
}

// queueLimit is the most Calls that may wait in one pool.
const queueLimit = 1 << 16

// poolOptions are the options of u.pools[i].
func (u *Upstream) poolOptions(o *settings.UpstreamOptions, i int) pool.Options {
	po := pool.Options{
		Name: o.Name, Endpoints: o.Endpoints, Connections: o.Connections, Loops: len(u.Loops),
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, DialTimeout: o.ConnectTimeout,
		QueueWait: o.UnavailableAfter, QueueLimit: queueLimit, Idle: o.Idle,
		SlowStart: u.SlowStart, Share: o.Share, Witness: u.Lanes.Quota(),
		Failed:    u.lines.Failed,
		Scarce:    u.lines.Scarce,
		Connected: u.lines.Connected,
		Discarded: u.discarded,
		HostGone:  gone,
		Local:     reach.IsLocal,
		Metrics:   u.poolMetrics,
	}
	if !u.IsRDMA {
		po.Improve = u.Ports.Astray
	}
	if o.Partitioned() {
		n := len(o.Endpoints)
		po.Connections = (o.Connections + n - 1) / n
		u.Endpoints.One(&po, i)
	} else {
		u.Endpoints.All(&po)
	}
	return po
}

// newLanes makes the lanes of u, which has no settings for them yet.
func (u *Upstream) newLanes() {
	o := session.Options{
		Upstream: u.Name, Now: u.Engine.Now, Log: &u.Log, Metrics: u.Metrics, Owner: u.Owner, Dial: u.dial,
		Shared:      func() []*pool.Pool { return u.pools },
		Lease:       func(loop, n int) (session.Lease, error) { return u.Loops[loop].Replies.Lease(n) },
		PinnedCalls: session.MaxServerCalls,
	}
	if u.IsRDMA {
		o.PinnedCalls = 2 * session.PinnedReverse
	}
	for _, l := range u.Loops {
		o.Loops = append(o.Loops, l)
	}
	u.Lanes = session.NewLanes(o)
}

// laneSettings are the settings of the lanes that follow from o.
func (u *Upstream) laneSettings(o *settings.UpstreamOptions) *session.Settings {
	s := &session.Settings{
		Lanes: o.LaneCount(), Endpoints: o.Endpoints, Priority: o.Priority,
		ConnectTimeout: o.ConnectTimeout, CallTimeout: o.CallTimeout, Pool: u.poolOptions(o, 0),
	}
	if o.Partitioned() {
		s.One = u.Endpoints.One
	}
	s.QuotaCalls, s.QuotaAlways = o.PinnedLimit()
	return s
}

// discarded gives back the source port of a seat that dials no more.
func (u *Upstream) discarded(s *pool.Seat) {
	if !u.IsRDMA {
		u.Ports.GiveBack(s)
	}
}

// Update puts the settings o in force. Shared connections that would be made differently now are
// replaced one after the other, each when its Calls are answered. Pinned connections stay.
func (u *Upstream) Update(o settings.UpstreamOptions) {
	old := u.Settings()
	if o.LaneCount() > old.LaneCount() {
		if err := u.Lanes.Set(u.laneSettings(&o)); err != nil { // before a Call needs one
			panic("BUG: proxy: " + err.Error())
		}
	}
	u.current.Store(&o)
	renew := old.Renews(&o)
	u.Watch.Set(o.ProbeInterval, o.ProbeIdle)
	u.lines.Keep(o.Endpoints...)
	u.addresses.Keep(o.Endpoints)
	u.Endpoints.Set(o.Endpoints, o.Priority)
	for i, p := range u.pools {
		p.Update(u.poolOptions(&o, i), renew)
	}
	u.Lanes.Update(u.laneSettings(&o), renew)
}

// CameTo counts what has become of a Call on a connection.
func (u *Upstream) CameTo(what Failure) { u.failures[what].Inc() }

// Dial makes one connection. pool.Dialer.
func (u *Upstream) Dial(ctx context.Context, endpoint string, affinity int, s *pool.Seat) (pool.Member, error) {
	return u.dial(ctx, endpoint, affinity, s, nil)
}

// dial makes a connection, for c unless that is nil: the shared connections have none.
func (u *Upstream) dial(
	ctx context.Context, endpoint string, affinity int, s *pool.Seat, c *session.Conn,
) (pool.Member, error) {
	return u.addresses.Dial(ctx, endpoint, s, func(ctx context.Context, addr string, t *reach.Trial) (pool.Member, error) {
		return u.Connect(ctx, u, &Dial{Endpoint: endpoint, Addr: addr, Loop: affinity, Trial: t, Seat: s, Lane: c})
	})
}

// FirstPort is the source port that seat s begins with. s is the seat of lane, or a shared one if lane is nil.
func (u *Upstream) FirstPort(s *pool.Seat, lane *session.Conn) reach.FirstPort {
	pools := uint64(len(u.pools))
	each := (uint64(u.Settings().Connections) + pools - 1) / pools
	f := reach.FirstPort{Shared: each * pools, Own: lane != nil}
	if f.Own {
		f.Number = lane.Ports()
	} else {
		f.Number = uint64(s.Index())*pools + uint64(slices.Index(u.pools, s.Pool()))
	}
	return f
}

// PoolFor is the pool of the client at addr.
func (u *Upstream) PoolFor(addr netip.Addr) *pool.Pool {
	if len(u.pools) == 1 {
		return u.pools[0]
	}
	return u.pools[reach.EndpointFor(addr, len(u.pools))]
}

// Phases are where the Calls of clients on the loop with this number count the parts of their time.
func (u *Upstream) Phases(here int) *observe.PhaseHistograms { return u.Counts[here].Phases }

// StickyLoop is the number of the loop that has the connection which Calls of a client at a must keep. It reports false
// if there is no such connection: over RDMA no Call must, and a pinned connection is made on the client's loop.
func (u *Upstream) StickyLoop(a netip.Addr) (here int, ok bool) {
	if u.IsRDMA || u.Settings().Mode == settings.ModePinned {
		return 0, false
	}
	return u.PoolFor(a).StickyLoop(fnv.Address(a)), true
}

// newGSSContexts makes the contexts of u.
func newGSSContexts(u *Upstream, m *metrics.Registry) *identity.GSSContexts {
	return identity.NewGSSContexts(identity.GSSOptions{
		Window: func() int { return u.Settings().GSSWindow },
		Now:    u.Engine.Now,
		Full:   m.Counter(metrics.UpstreamGSSHeldCalls, u.Name).Inc,
	})
}
