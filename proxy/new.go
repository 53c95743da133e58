package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/identity"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// New makes a Proxy; Start sets it going. It reports every problem it finds.
func New(o Options) (*Proxy, error) {
	p := &Proxy{
		inventory: newInventory(),
		log:       o.Log, metrics: o.Metrics, socket: o.Socket, lookUp: o.LookUp, engine: o.Engine, arena: o.Arena,
		registry:   o.Registry,
		operations: observe.NewOperations(o.Metrics, o.Registry.Operations()),
		identity:   identity.NewBridge(o.Identity),
		xids:       identity.NewXIDs(),
		flights:    identity.NewFlights(),
		hosts:      admit.NewHosts(),
		dials:      dials.New(reach.LeastDials, reach.LeastDialsPerSecond),
		quit:       make(chan struct{}),
		numbers:    make(map[string]int),
	}
	if p.socket == nil {
		p.socket = func(string) *net.TCPListener { return nil }
	}
	p.tenants = admit.NewTenants(p.metrics, p.engine.Now)
	p.describe()
	rdma := slices.ContainsFunc(o.Listeners, func(l settings.ListenerOptions) bool { return l.RDMA })
	if err := p.divideMemory(rdma); err != nil {
		return nil, err
	}
	for i, l := range o.Engine.Loops() {
		p.loops = append(p.loops, newLoop(i, l, p.memory, p.calls, p.replies, p.metrics))
	}
	for _, l := range p.loops {
		l.peers = p.loops
	}
	p.SetObserver(o.Observer)
	for _, l := range p.loops {
		p.listening = append(p.listening, &listener.Loop{SocketLoop: l, TCP: l.tcp, Metrics: l.metrics})
	}
	p.rdma = listener.NewRDMARoom(p.listening, p.inventory, p.engine.Now)
	if err := errors.Join(p.SetTenants(o.Tenants), p.addUpstreams(o.Upstreams), p.addListeners(o.Listeners)); err != nil {
		return nil, err
	}
	return p, nil
}

// describe registers the metrics that belong to no listener and no upstream.
func (p *Proxy) describe() {
	p.metrics.GaugeFunc(metrics.DialsInProgress, func() float64 { busy, _ := p.dials.Stats(); return float64(busy) })
	p.metrics.GaugeFunc(metrics.DialsWaiting, func() float64 { _, n := p.dials.Stats(); return float64(n) })
}

// divideMemory divides the budget into accounts; rdma says that there are RDMA listeners.
func (p *Proxy) divideMemory(rdma bool) error {
	d := settings.Divide(p.arena.Budget(), rdma)
	var err error
	if p.replies, err = p.arena.Reserve("replies", d.Replies); err != nil {
		return err
	}
	if rdma {
		receives, err := p.arena.Reserve("receives", d.Receives)
		if err != nil {
			return err
		}
		p.receives = rdmaside.NewReceivePool(receives)
	}
	p.calls = p.arena.Account("calls", d.Calls)
	p.memory = admit.NewMemory(p.calls, p.metrics, p.weigh, &p.log)
	p.slow = admit.NewSlowReaders(p.replies, p.metrics, p.weigh, &p.log)
	return nil
}

// number returns the number that stands for the name of an upstream. An upstream that replaces
// another one of its name has the same number, so that
// identity.Flights recognises retransmissions of the Calls that went to the other.
func (p *Proxy) number(name string) int {
	n, ok := p.numbers[name]
	if !ok {
		n = p.numbered
		p.numbered++
		p.numbers[name] = n
	}
	return n
}

// upstreamContext returns what upstreams share.
func (p *Proxy) upstreamContext() *upstream.Context {
	x := &upstream.Context{
		Base: p.log, Metrics: p.metrics, Engine: p.engine, Registry: p.registry, Hosts: p.hosts, Identity: &p.identity,
		Flights: p.flights, Replies: p.replies, XIDs: p.xids, Budget: p.arena.Budget(),
		Slow: p.slow, Draining: &p.drains, Dials: p.dials, LookUp: p.lookUp,
		Owner: unsentCalls{}, Connect: p.loops.connectTo, Named: p.upstreamNamed,
	}
	for _, l := range p.loops {
		x.Loops = append(x.Loops, upstream.Loop{Loop: l, Metrics: l.metrics, Replies: l.replies})
	}
	return x
}

// connectTo makes the connection d to u, on one of the loops.
func (ls eventLoops) connectTo(ctx context.Context, u *upstream.Upstream, d *upstream.Dial) (pool.Member, error) {
	if u.IsRDMA {
		return dialRDMA(ctx, u, ls[d.Loop], d)
	}
	return dialTCP(ctx, u, ls[d.Loop], d)
}

// addUpstreams makes the first upstreams.
func (p *Proxy) addUpstreams(all []settings.UpstreamOptions) error {
	var errs []error
	x := p.upstreamContext()
	for _, o := range all {
		if p.upstreams[o.Name] != nil {
			errs = append(errs, fmt.Errorf("proxy: upstream %q named twice", o.Name))
			continue
		}
		u, err := upstream.New(x, p.number(o.Name), o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.upstreams[o.Name] = u
		u.Describe()
	}
	p.sharePins()
	p.limitDials()
	return errors.Join(errs...)
}

// listenerContext returns what listeners share.
func (p *Proxy) listenerContext() *listener.Context {
	return &listener.Context{
		Base: p.log, Metrics: p.metrics, Engine: p.engine, Registry: p.registry, Loops: p.listening, All: p.inventory,
		Hosts: p.hosts, Tenants: p.tenants, TenantCounts: &p.tenantCounts, Operations: p.operations,
		Calls: p.calls, Replies: p.replies, Receives: p.receives, Room: p.rdma, Quit: p.quit,
		ServeTCP: p.serveTCP, ServeRDMA: p.serveRDMA,
	}
}

// addListeners makes the first listeners, which do not listen yet.
func (p *Proxy) addListeners(all []settings.ListenerOptions) error {
	var errs []error
	var ls []*listener.Listener
	us, x := p.allUpstreams(), p.listenerContext()
	for _, o := range all {
		l := listener.New(x, o)
		s, err := l.NewSettings(o, us)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.Open(s)
		ls = append(ls, l)
	}
	p.set(ls, us)
	return errors.Join(errs...)
}

// sharePins divides the memory that pinned connections may take among the upstreams that have
// such connections.
func (p *Proxy) sharePins() {
	var us []*upstream.Upstream
	for _, u := range p.allUpstreams() {
		switch {
		case u.Settings().Mode != settings.ModePinned:
			u.Lanes.SetMostPinned(0)
		case u.IsRDMA:
			us = append(us, u)
		default:
			u.Lanes.SetMostPinned(int64(u.Settings().Pinned)) // an idle TCP connection takes no memory
		}
	}
	for _, u := range us {
		u.Lanes.SetMostPinned(u.Settings().MostPins(p.replies.Limit(), len(us)))
	}
}

// limitDials gives the limiter the limits for the upstreams that there are.
func (p *Proxy) limitDials() {
	var all []reach.Demand
	for _, u := range p.allUpstreams() {
		all = append(all, u.Settings().Demand())
	}
	p.dials.Set(reach.DialLimits(all))
}

// Start begins to listen and to connect to the upstreams. When a listener
// cannot be opened the others are closed again and the error returned.
func (p *Proxy) Start(ctx context.Context) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.ctx = ctx
	// Listening comes first, because an upstream may be one of these listeners. Calls that
	// arrive before there is a connection wait for it.
	for _, l := range p.CurrentListeners() {
		if err := l.Start(ctx, p.socket(l.Address)); err != nil {
			return errors.Join(fmt.Errorf("proxy: listener %s: %w", l.Name, err), p.Close())
		}
	}
	for _, u := range p.allUpstreams() {
		u.Start()
	}
	return nil
}
