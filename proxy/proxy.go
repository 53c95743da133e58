// Package proxy bridges RPC Calls from one side to the other and their Replies
// back.
//
// # The road of one Call
//
// A client, TCP ([tcpClient]) or RDMA ([rdmaClient]), reads a Call into memory of
// the arena and makes a [call] of it. The call's header is walked, its route gives
// an [upstream], the upper-layer binding analyses it, an XID is assigned, and the
// upstream's pool dispatches it to a connection with a free credit: an
// [rdmaConn] or a [tcpConn]. When the Reply is there, the client's XID is put
// back and the Reply goes to the client in one gather write.
//
// # Ownership
//
// Every client and every member lives on one loop and is touched only there. A
// call is touched by one loop at a time: its client's, then its member's, then its
// client's again. When both are the same loop nothing is posted and the call
// finishes on the thread that read it.
//
// # What becomes of a Call
//
// Every Call that was read is answered, or its client's connection is closed;
// which, and what is replayed, is decided in fate.go.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Options describe a Proxy. All fields but Log and Metrics are needed.
type Options struct {
	Log      zerolog.Logger
	Metrics  *metrics.Registry
	Engine   *tcpframe.Engine
	Arena    *regmem.Arena
	Registry *ulb.Registry

	Listeners []ListenerOptions
	Upstreams []UpstreamOptions

	// Socket returns a TCP socket that listens at an address already, or nil. It is
	// asked once for each address, by Start, and Listeners take what it returns. nil
	// has none.
	Socket func(address string) *net.TCPListener
}

// A Route sends the Calls of one program to an upstream of its own.
type Route struct {
	Program  uint32
	Versions []uint32 // empty: all
	Upstream string
}

// ListenerOptions describe where clients come in. Zero values mean the
// defaults named.
type ListenerOptions struct {
	Name, Address string
	RDMA          bool
	Provider      fabric.Provider // for RDMA

	Upstream string // for every program without a Route; "" refuses those
	Routes   []Route

	Allow                    []netip.Prefix // empty: everybody
	MaxConnections           int            // default 4096
	MaxConnectionsPerAddress int            // default no limit of its own
	MaxRecord                int            // octets; default 4 MiB + 64 KiB
	MaxFragments             int            // to a record; default 1024
	MaxCalls                 int            // outstanding for one client; default 256
	MaxOutbound              int64          // octets owed to one client; default 32 MiB, at most a sixteenth of the budget
	StallTimeout             time.Duration  // TCP: for a record begun; default 30 s
	IdleTimeout              time.Duration  // without traffic and without a Call under way; default none

	MaxStarting           int // RDMA: connections being set up; default the provider's
	MaxStartingPerAddress int // RDMA: of those, from one address; default the provider's

	Weights    []Weight // the first that fits counts; others have 1
	Rate       Rate     // of all clients together
	ClientRate Rate     // of each client address

	Credits                 int // RDMA: most granted to one client; default 64
	CallInline, ReplyInline int // RDMA: inline thresholds in octets; default 4096
}

// UpstreamOptions describe where Calls go. Zero values mean the defaults named.
type UpstreamOptions struct {
	Name      string
	RDMA      bool
	Provider  fabric.Provider // for RDMA
	Endpoints []string        // host:port, at least one
	Failover  bool            // clients need not stay with one of several Endpoints
	Priority  bool            // with Failover: each endpoint is for when those before it fail

	Connections             int  // default 4 for RDMA, 1 for TCP
	Mode                    Mode // who has a connection of its own
	Pinned                  int  // most of those; default 256, for RDMA at most what memory for Replies allows
	Credits                 int  // asked for on each connection; default 128
	SlowStart               int  // Calls read from clients and sent until the upstream answers, one more for each Reply; default 16; from 1024 on there is no slow start
	CallInline, ReplyInline int  // octets; default 65536 and 4096

	Source Source // for TCP

	// SilentTimeout is how long the server's host may leave unanswered what its TCP
	// answers by itself, before the connection is replaced; default 4 s, negative
	// none. For RDMA it is the provider's to know.
	SilentTimeout time.Duration
	// ProbeInterval is how long nothing may be heard on a connection before it is asked
	// with a NULL Call; default 5 s, negative never.
	ProbeInterval time.Duration

	CallTimeout      time.Duration // a Call unanswered for so long ends its connection; default 60 s
	ConnectTimeout   time.Duration // default 10 s
	UnavailableAfter time.Duration // longest wait for a credit before the client is closed; default 30 s
	BackoffMin       time.Duration // default 100 ms
	BackoffMax       time.Duration // default 5 s
}

func (o *ListenerOptions) setDefaults() {
	setDefault(&o.MaxConnections, 4096)
	setDefault(&o.MaxRecord, 4<<20+64<<10)
	setDefault(&o.MaxFragments, 1024)
	setDefault(&o.MaxCalls, 256)
	setDefault(&o.MaxOutbound, 32<<20)
	setDefault(&o.StallTimeout, 30*time.Second)
	setDefault(&o.Credits, 64)
	setDefault(&o.CallInline, 4096)
	setDefault(&o.ReplyInline, 4096)
}

func (o *UpstreamOptions) setDefaults() {
	connections := 1
	if o.RDMA {
		connections = 4
	}
	setDefault(&o.Connections, connections)
	setDefault(&o.Pinned, 256)
	setDefault(&o.Credits, 128)
	setDefault(&o.SlowStart, 16)
	setDefault(&o.CallInline, 64<<10)
	setDefault(&o.ReplyInline, 4096)
	setDefaultOrNone(&o.SilentTimeout, 4*time.Second)
	setDefaultOrNone(&o.ProbeInterval, 5*time.Second)
	setDefault(&o.CallTimeout, 60*time.Second)
	setDefault(&o.ConnectTimeout, 10*time.Second)
	setDefault(&o.UnavailableAfter, 30*time.Second)
	setDefault(&o.BackoffMin, 100*time.Millisecond)
	setDefault(&o.BackoffMax, 5*time.Second)
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// setDefaultOrNone is for what a negative value switches off.
func setDefaultOrNone(v *time.Duration, d time.Duration) {
	if *v == 0 {
		*v = d
	}
}

// A Proxy is a set of listeners and upstreams.
type Proxy struct {
	log      zerolog.Logger
	metrics  *metrics.Registry
	engine   *tcpframe.Engine
	arena    *regmem.Arena
	registry *ulb.Registry
	loops    []*eventLoop
	take     func(address string) *net.TCPListener

	calls    *regmem.Account       // records on their way in
	replies  *regmem.Account       // what replies need: never starved by calls
	receives *rdmaside.ReceivePool // what RDMA clients need to be connected; nil without RDMA listeners
	dials    *pool.Limiter         // attempts to connect of all upstreams
	xids     *xidTable
	slow     slowClients

	relieved *metrics.Counter
	madeRoom atomic.Int64 // when makeRoom looked last, in Unix nanoseconds

	changing sync.Mutex      // held by Start and Reconfigure; before mu
	ctx      context.Context // that of Start
	numbers  map[string]int  // of upstreams, by name; of New before there is a Start, then as changing
	quit     chan struct{}   // closed by Close
	retiring sync.WaitGroup  // upstreams on their way out; Add with mu held and closed false

	mu        sync.Mutex             // guards the rest; a leaf
	listeners []*listener            // replaced whole, as upstreams
	upstreams map[string]*upstream   // by name
	leaving   []*listener            // that Reconfigure took away and that have clients
	retired   map[*upstream]struct{} // that it took away and that may have Calls
	draining  bool
	closed    bool
}

// replyShare is the part of the memory budget kept for Receives and Reply
// chunks. Calls can neither use nor splinter it, so that a budget full of waiting
// Calls can always shrink: each Call sent finds memory for its Reply sooner or
// later.
const replyShare = 0.5

// receiveShare is the part kept for the Receives of RDMA clients, where there is
// an RDMA listener: thousands of idle ones must not have the memory that the Calls
// of the others need. Of 256 MiB it is enough for 1,000 clients with 6 credits
// each, or 160 with 64. A client that finds none left is refused.
const receiveShare = 0.1875

// New makes a Proxy; Start sets it going. It reports every problem it finds.
func New(o Options) (*Proxy, error) {
	p := &Proxy{
		log: o.Log, metrics: o.Metrics, take: o.Socket, engine: o.Engine, arena: o.Arena, registry: o.Registry,
		xids:      newXIDTable(),
		dials:     pool.NewLimiter(maxDials, dialsPerSecond),
		quit:      make(chan struct{}),
		retired:   make(map[*upstream]struct{}),
		upstreams: make(map[string]*upstream, len(o.Upstreams)),
		numbers:   make(map[string]int),
	}
	if p.take == nil {
		p.take = func(string) *net.TCPListener { return nil }
	}
	p.slow.p = p
	p.metrics.GaugeFunc("dials_in_progress", "Attempts to connect to upstreams that are under way.", func() float64 { busy, _ := p.dials.Stats(); return float64(busy) })
	p.metrics.GaugeFunc("dials_waiting", "Attempts to connect to upstreams that wait because too many are under way or have begun lately.", func() float64 { _, n := p.dials.Stats(); return float64(n) })
	p.relieved = p.metrics.Counter("clients_relieved_total", "Clients closed because they did not take their Replies while memory for Replies was spent.")
	var err error
	budget := o.Arena.Budget()
	if p.replies, err = o.Arena.Reserve("replies", int64(float64(budget)*replyShare)); err != nil {
		return nil, err
	}
	rest := budget - int64(float64(budget)*replyShare)
	if slices.ContainsFunc(o.Listeners, func(l ListenerOptions) bool { return l.RDMA }) {
		n := int64(float64(budget) * receiveShare)
		receives, err := o.Arena.Reserve("receives", n)
		if err != nil {
			return nil, err
		}
		p.receives = rdmaside.NewReceivePool(receives)
		rest -= n
	}
	p.calls = o.Arena.Account("calls", rest)
	for i, l := range o.Engine.Loops() {
		p.loops = append(p.loops, p.newLoop(i, l))
	}
	var errs []error
	for _, uo := range o.Upstreams {
		if p.upstreams[uo.Name] != nil {
			errs = append(errs, fmt.Errorf("proxy: upstream %q named twice", uo.Name))
			continue
		}
		u, err := newUpstream(p, uo)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.upstreams[uo.Name] = u
		u.describe()
	}
	p.sharePins()
	for _, lo := range o.Listeners {
		l := newListener(p, lo)
		t, err := l.newSettings(lo, p.upstreams)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.current.Store(t)
		p.listeners = append(p.listeners, l)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// sharePins divides the memory that pinned connections may take between the
// upstreams that have them.
func (p *Proxy) sharePins() {
	var us []*upstream
	for _, u := range p.allUpstreams() {
		switch {
		case u.settings().Mode == ModeShared:
			u.pins.most.Store(0)
		case u.isRDMA:
			us = append(us, u)
		default:
			u.pins.most.Store(int64(u.settings().Pinned)) // an idle TCP connection takes none
		}
	}
	for _, u := range us {
		u.pins.share(p.replies.Limit()/pinnedShare/int64(len(us)), u.settings())
	}
}

// Start begins to listen and to connect to the upstreams. When a listener
// cannot be opened the others are closed again and the error returned.
func (p *Proxy) Start(ctx context.Context) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.ctx = ctx
	// Listening comes first: one of the upstreams may be a listener of our own.
	// Calls that arrive before there is a connection wait for it.
	for _, l := range p.currentListeners() {
		if err := l.start(ctx, p.take(l.address)); err != nil {
			return errors.Join(fmt.Errorf("proxy: listener %s: %w", l.name, err), p.Close())
		}
	}
	for _, u := range p.allUpstreams() {
		for _, up := range u.pools {
			up.Start()
		}
	}
	return nil
}

// Addr is the address the named listener listens at, "" if it does not.
func (p *Proxy) Addr(name string) string {
	for _, l := range p.currentListeners() {
		if l.name == name {
			return l.addr()
		}
	}
	return ""
}

// Ready is nil when every upstream that a listener needs has a usable
// connection and the Proxy is not draining. Otherwise it says what is missing.
func (p *Proxy) Ready() error {
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	if draining {
		return errors.New("draining")
	}
	var errs []error
	seen := make(map[*upstream]bool)
	for _, l := range p.currentListeners() {
		for _, u := range l.upstreams() {
			if seen[u] {
				continue
			}
			seen[u] = true
			if u.usable() == 0 {
				errs = append(errs, fmt.Errorf("upstream %s has no usable connection", u.name))
			}
		}
	}
	return errors.Join(errs...)
}

// Drain stops accepting clients, closes idle ones, and closes each other one
// when its last outstanding Call is answered. It returns when no client is left
// or ctx ends; what remains then is for Close.
func (p *Proxy) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	p.changing.Lock() // what Reconfigure does is done, and is all there will be
	ls := p.allListeners()
	p.changing.Unlock()
	for _, l := range ls {
		l.drain()
	}
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		n := 0
		for _, l := range ls {
			n += l.clientCount()
		}
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("proxy: drain: %d clients left: %w", n, ctx.Err())
		case <-t.C:
		}
	}
}

// Close ends every connection. Calls outstanding are not answered; their
// clients' connections are closed.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed, p.draining = true, true
	retired := slices.Collect(maps.Keys(p.retired))
	p.mu.Unlock()
	close(p.quit)
	for _, l := range p.allListeners() {
		l.close()
	}
	for _, u := range slices.Concat(slices.Collect(maps.Values(p.allUpstreams())), retired) {
		u.close()
	}
	p.retiring.Wait()
	return nil
}

// Status is a moment's view, for people.
type Status struct {
	Draining  bool
	Listeners []ListenerStatus
	Upstreams []UpstreamStatus
	Memory    regmem.Stats
}

// UpstreamStatus is a moment's view of an upstream.
type UpstreamStatus struct {
	pool.Stats     // of the shared connections
	Pinned     int // connections of one client each
}

// ListenerStatus is a moment's view of a listener.
type ListenerStatus struct {
	Name, Address, Transport string
	Clients                  int
}

// Status returns a moment's view.
func (p *Proxy) Status() Status {
	st := Status{Memory: p.arena.Stats()}
	p.mu.Lock()
	st.Draining = p.draining
	p.mu.Unlock()
	for _, l := range p.currentListeners() {
		transport := "tcp"
		if l.isRDMA {
			transport = "rdma"
		}
		st.Listeners = append(st.Listeners, ListenerStatus{l.name, l.addr(), transport, l.clientCount()})
	}
	for _, u := range p.sortedUpstreams() {
		st.Upstreams = append(st.Upstreams, UpstreamStatus{u.stats(), u.pins.count()})
	}
	return st
}
