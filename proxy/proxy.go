// Package proxy bridges RPC Calls from one side to the other and their Replies
// back.
//
// # The road of one Call
//
// A client's connection, a [tcpClient] or an [rdmaClient], reads a Call into memory of the
// arena and makes a [call] of it. [front.begin] walks the header, finds the [upstream] by the
// route, has the upper-layer binding analyse the Call, and assigns an XID. The upstream's pool
// dispatches the call to a connection with a free credit, an [rdmaConn] or a [tcpConn]. When
// the Reply is there, [front.deliver] puts the client's XID back and sends the Reply in one
// gather write.
//
// # Ownership
//
// Every connection lives on one loop, which alone touches it. One loop at a time touches a
// call: its client's, then that of the connection to the upstream, then its client's again.
// When both are the same loop, nothing is posted, and the goroutine that read the Call
// finishes it.
//
// # What becomes of a Call
//
// Every Call that was read is answered, or its client's connection is closed. The file fate.go
// decides which of the two happens, and which Calls are sent to the upstream again.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
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
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Options describe a Proxy. Log, Metrics and Socket may be zero.
type Options struct {
	Log      zerolog.Logger
	Metrics  *metrics.Registry
	Engine   *tcpframe.Engine
	Arena    *regmem.Arena
	Registry *ulb.Registry

	Listeners []ListenerOptions
	Upstreams []UpstreamOptions
	Tenants   []TenantOptions

	// Identity tells this bridge from others that have its address at a server, and is the same
	// after a restart. XIDs and the numbers of lock owners depend on it.
	Identity string

	// Observer sees the Calls that are over; nil for none.
	Observer Observer

	// Socket returns a TCP socket that already listens at an address, or nil if there is
	// none. Start calls it once for each address, and the listener owns the socket. A nil
	// Socket returns nil for every address.
	Socket func(address string) *net.TCPListener
}

// A Proxy is a set of listeners and upstreams.
type Proxy struct {
	log      zerolog.Logger
	metrics  *metrics.Registry
	engine   *tcpframe.Engine
	arena    *regmem.Arena
	registry *ulb.Registry
	loops    []*eventLoop
	socket   func(address string) *net.TCPListener

	calls    *regmem.Account       // memory for Calls
	replies  *regmem.Account       // memory for Replies, which Calls cannot exhaust
	receives *rdmaside.ReceivePool // memory for the Receives of RDMA clients; nil without RDMA listeners
	dials    *pool.Limiter         // bounds the attempts to connect of all upstreams
	xids     *xidSpace
	flights  *flights
	hosts    *hosts
	slow     slowClients

	tenants    atomic.Pointer[[]*tenant] // in order; nil for none
	observer   atomic.Pointer[Observer]  // nil for none
	operations operations
	looking    sync.Mutex // held while the loops are asked: collect.go; taken before all others
	round      uint64     // counts the times; guarded by looking
	deaf       []bool     // loops that have not answered this time; guarded by looking

	homes sync.Mutex // held while homeRDMA chooses a loop; a leaf

	slowClosed *metrics.Counter
	madeRoom   atomic.Int64 // when makeRoom last looked for clients to close, on the clock of the loops

	refreshing sync.Mutex // held by RefreshTLS; before mu

	changing sync.Mutex      // held by Start and Reconfigure; before mu
	ctx      context.Context // Start's
	numbers  map[string]int  // the upstreams' numbers, by name; guarded by changing after New, as is numbered
	numbered int             // numbers given so far
	quit     chan struct{}   // closed by Close
	retiring sync.WaitGroup  // counts upstreams and listeners that are being retired; Add with mu held and closed false

	drains atomic.Bool // draining, for lines of upstreams

	mu        sync.Mutex             // guards the rest; a leaf
	listeners []*listener            // never changed in place, but replaced
	upstreams map[string]*upstream   // by name; never changed in place, but replaced
	leaving   []*listener            // removed by Reconfigure, and may have clients
	retired   map[*upstream]struct{} // removed by Reconfigure, and may have Calls
	draining  bool
	closed    bool
}

// replyShare is the part of the memory budget that is kept for Replies: the Receives of
// connections to upstreams, Write chunks and Reply chunks. Calls can neither use nor fragment
// it, so that a budget full of waiting Calls can always shrink: each Call that is sent finds
// memory for its Reply sooner or later.
const replyShare = 0.5

// receiveShare is the part of the budget that is kept for the Receives of RDMA clients, if there
// is an RDMA listener: thousands of idle clients must not take the memory that the Calls of the
// others need. With a budget of 256 MiB it is enough for 1,000 clients with 6 credits each, or
// for 160 with 64. A client that finds no memory left is refused.
const receiveShare = 0.1875

// New makes a Proxy; Start sets it going. It reports every problem it finds.
func New(o Options) (*Proxy, error) {
	p := &Proxy{
		log: o.Log, metrics: o.Metrics, socket: o.Socket, engine: o.Engine, arena: o.Arena, registry: o.Registry,
		xids:       newXIDSpace(newIdentity(o.Identity)),
		flights:    newFlights(),
		hosts:      newHosts(),
		dials:      pool.NewLimiter(leastDials, leastDialsPerSecond),
		quit:       make(chan struct{}),
		retired:    make(map[*upstream]struct{}),
		upstreams:  make(map[string]*upstream, len(o.Upstreams)),
		numbers:    make(map[string]int),
		operations: operations{all: make(map[operationKey]*operationSeries)},
	}
	if p.socket == nil {
		p.socket = func(string) *net.TCPListener { return nil }
	}
	p.SetObserver(o.Observer)
	p.slow.p = p
	p.describe()
	rdma := slices.ContainsFunc(o.Listeners, func(l ListenerOptions) bool { return l.RDMA })
	if err := p.divideMemory(rdma); err != nil {
		return nil, err
	}
	for i, l := range o.Engine.Loops() {
		p.loops = append(p.loops, p.newLoop(i, l))
	}
	if err := errors.Join(p.SetTenants(o.Tenants), p.addUpstreams(o.Upstreams), p.addListeners(o.Listeners)); err != nil {
		return nil, err
	}
	return p, nil
}

// describe registers the metrics that belong to no listener and no upstream.
func (p *Proxy) describe() {
	p.metrics.GaugeFunc(metrics.DialsInProgress, func() float64 { busy, _ := p.dials.Stats(); return float64(busy) })
	p.metrics.GaugeFunc(metrics.DialsWaiting, func() float64 { _, n := p.dials.Stats(); return float64(n) })
	p.slowClosed = p.metrics.Counter(metrics.ClosedClients, "slow_reader")
}

// divideMemory divides the budget into accounts; rdma says that there are RDMA listeners.
func (p *Proxy) divideMemory(rdma bool) error {
	d := divide(p.arena.Budget(), rdma)
	var err error
	if p.replies, err = p.arena.Reserve("replies", d.replies); err != nil {
		return err
	}
	if rdma {
		receives, err := p.arena.Reserve("receives", d.receives)
		if err != nil {
			return err
		}
		p.receives = rdmaside.NewReceivePool(receives)
	}
	p.calls = p.arena.Account("calls", d.calls)
	newCallMemory(p.calls, p)
	return nil
}

// addUpstreams makes the first upstreams.
func (p *Proxy) addUpstreams(all []UpstreamOptions) error {
	var errs []error
	for _, o := range all {
		if p.upstreams[o.Name] != nil {
			errs = append(errs, fmt.Errorf("proxy: upstream %q named twice", o.Name))
			continue
		}
		u, err := newUpstream(p, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.upstreams[o.Name] = u
		u.describe()
	}
	p.sharePins()
	p.limitDials()
	return errors.Join(errs...)
}

// addListeners makes the first listeners, which do not listen yet.
func (p *Proxy) addListeners(all []ListenerOptions) error {
	var errs []error
	for _, o := range all {
		l := newListener(p, o)
		s, err := l.newSettings(o, p.upstreams)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.policy.describe(l)
		l.current.Store(s)
		l.describe()
		p.listeners = append(p.listeners, l)
	}
	return errors.Join(errs...)
}

// sharePins divides the memory that pinned connections may take among the upstreams that have
// such connections.
func (p *Proxy) sharePins() {
	var us []*upstream
	for _, u := range p.allUpstreams() {
		switch {
		case u.settings().Mode != ModePinned:
			u.pins.most.Store(0)
		case u.isRDMA:
			us = append(us, u)
		default:
			u.pins.most.Store(int64(u.settings().Pinned)) // an idle TCP connection takes no memory
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
	// Listening comes first, because an upstream may be one of these listeners. Calls that
	// arrive before there is a connection wait for it.
	for _, l := range p.currentListeners() {
		if err := l.start(ctx, p.socket(l.address)); err != nil {
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

// Addr is the address that the named listener listens at, or "" if it does not listen.
func (p *Proxy) Addr(name string) string {
	for _, l := range p.currentListeners() {
		if l.name == name {
			return l.addr()
		}
	}
	return ""
}

// Ready is nil when every upstream that a listener needs has a usable
// connection, or needs none because all its connections sleep, and the Proxy is not draining. Otherwise it says what is missing.
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
			if st := u.sharedStats(); st.usable == 0 && !st.sleeps() {
				errs = append(errs, fmt.Errorf("upstream %s has no usable connection", u.name))
			}
		}
	}
	return errors.Join(errs...)
}

// Drain stops accepting clients, closes the idle ones, and closes each other one when its last
// outstanding Call is answered. It returns when no client is left or ctx ends. Close ends the
// clients that are left.
func (p *Proxy) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	p.drains.Store(true)
	p.changing.Lock() // a Reconfigure that runs has ended, and the next one will fail
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

// Close ends every connection. Outstanding Calls are not answered, and their clients'
// connections are closed.
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
