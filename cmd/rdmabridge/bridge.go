package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// trimEvery is how often the arena gives back what it did not need for so long.
const trimEvery = 30 * time.Second

// A bridge is everything that one configuration describes, put together.
type bridge struct {
	log     zerolog.Logger
	config  *configs.Config
	drainIn time.Duration

	metrics *metrics.Registry
	arena   *regmem.Arena
	engine  *tcpframe.Engine
	proxy   *proxy.Proxy
	admin   *admin // nil for none

	rpcbindMu      sync.Mutex      // guards the next two; a leaf
	rpcbind        *rpcbind.Server // nil for none
	rpcbindAddress string          // as configured

	providers map[string]provider // by what they are for; see options

	inherited *inheritance // nil unless sockets were taken over

	trim chan struct{} // closed to end trimming
	wg   sync.WaitGroup
}

// newBridge makes the parts of c and joins them. Nothing listens yet.
func newBridge(c *configs.Config, log zerolog.Logger) (*bridge, error) {
	return inheritBridge(c, log, nil)
}

// inheritBridge is newBridge with sockets that listen already.
func inheritBridge(c *configs.Config, log zerolog.Logger, in *inheritance) (b *bridge, err error) {
	b = &bridge{log: log, config: c, inherited: in, drainIn: c.Drain.Timeout.Value(), metrics: metrics.New(), trim: make(chan struct{})}
	if b.arena, err = regmem.New(regmem.Options{Budget: int64(c.Memory.Budget)}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.arena.Close())
		}
	}()
	b.engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: c.Loops, Log: log, Metrics: b.metrics})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.engine.Stop()
		}
	}()
	registry := ulb.NewRegistry(ulb.Limits{MaxIO: uint32(c.Chunks.IO), MaxReply: uint32(c.Chunks.Reply)})
	nfs.Register(registry)
	o := proxy.Options{Log: log, Metrics: b.metrics, Engine: b.engine, Arena: b.arena, Registry: registry, Socket: in.listener}
	var has func()
	if o.Listeners, o.Upstreams, has, err = b.options(c); err != nil {
		return nil, err
	}
	if b.proxy, err = proxy.New(o); err != nil {
		return nil, err
	}
	has()
	b.describe()
	if c.Admin.Enabled() {
		b.admin = newAdmin(c.Admin.Address, b)
		if b.admin.listener, err = in.admin(c.Admin.Address); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func listenerOptions(l *configs.Listener, log zerolog.Logger) (proxy.ListenerOptions, error) {
	o := proxy.ListenerOptions{
		Name: l.Name, Address: l.Address, RDMA: l.RDMA(), Upstream: l.Upstream,
		MaxConnections: l.Limits.Connections, MaxConnectionsPerAddress: l.Limits.PerAddress,
		MaxRecord: int(l.Limits.Record), MaxFragments: l.Limits.Fragments,
		MaxCalls: l.Limits.Calls, MaxOutbound: int64(l.Limits.Outbound),
		StallTimeout: l.Timeouts.Stall.Value(), IdleTimeout: max(0, l.Timeouts.Idle.Value()), // 0 is none
		Credits: l.Credits, CallInline: int(l.Inline.Call), ReplyInline: int(l.Inline.Reply),
	}
	if l.RDMA() {
		o.Provider = listenerProvider(l, log)
		o.MaxStarting, o.MaxStartingPerAddress = l.Limits.Starting, l.Limits.StartingPerAddress
	}
	o.Rate, o.ClientRate = rate(l.Rates.Listener), rate(l.Rates.Client)
	for _, w := range l.Weights {
		pw := proxy.Weight{Weight: w.Weight}
		for _, p := range w.Clients {
			pw.Clients = append(pw.Clients, netip.PrefixFrom(p.Addr(), p.Bits()))
		}
		o.Weights = append(o.Weights, pw)
	}
	for _, p := range l.Allow {
		o.Allow = append(o.Allow, netip.PrefixFrom(p.Addr(), p.Bits()))
	}
	for _, r := range l.Routes {
		program, err := known.ResolveProgram(r.Program)
		if err != nil {
			return o, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		o.Routes = append(o.Routes, proxy.Route{Program: program, Versions: r.Versions, Upstream: r.Upstream})
	}
	return o, nil
}

func rate(r configs.Rate) proxy.Rate { return proxy.Rate{Calls: r.Calls, Octets: int64(r.Bytes)} }

// poolModes are the words for pool.mode.
var poolModes = map[string]proxy.Mode{
	configs.PoolAuto: proxy.ModeAuto, configs.PoolShared: proxy.ModeShared, configs.PoolPinned: proxy.ModePinned,
}

func upstreamOptions(u *configs.Upstream, log zerolog.Logger) proxy.UpstreamOptions {
	o := proxy.UpstreamOptions{
		Name: u.Name, RDMA: u.RDMA(), Endpoints: u.Endpoints,
		Failover: u.Failover == configs.On, Priority: u.Balance == configs.BalancePriority,
		Connections: u.Pool.Connections, Credits: u.Pool.Credits,
		Mode: poolModes[u.Pool.Mode], Pinned: u.Pool.Pinned,
		CallInline: int(u.Inline.Call), ReplyInline: int(u.Inline.Reply),
		CallTimeout: u.Timeouts.Call.Value(), ConnectTimeout: u.Timeouts.Connect.Value(),
		UnavailableAfter: u.Timeouts.Unavailable.Value(),
		BackoffMin:       u.Backoff.Min.Value(), BackoffMax: u.Backoff.Max.Value(),
		SilentTimeout: u.Timeouts.Silent.Value(), ProbeInterval: u.Timeouts.Probe.Value(),
	}
	if u.RDMA() {
		o.Provider = upstreamProvider(u, log)
		return o
	}
	if u.Source.Address != "" {
		o.Source.Address = netip.MustParseAddr(u.Source.Address)
	}
	if u.Source.Ports != configs.AnyPort {
		o.Source.Low, o.Source.High = u.Source.Ports.Low, u.Source.Ports.High
	}
	return o
}

// start connects and listens.
func (b *bridge) start() error {
	if b.admin != nil {
		if err := b.admin.start(); err != nil {
			return err
		}
	}
	// The context is that of connections to come, which end by Drain and Close.
	if err := b.proxy.Start(context.Background()); err != nil {
		return err
	}
	if err := b.startRPCBind(); err != nil {
		return err
	}
	b.wg.Add(1)
	go func() {
		defer b.wg.Done()
		t := time.NewTicker(trimEvery)
		defer t.Stop()
		for {
			select {
			case <-b.trim:
				return
			case <-t.C:
				b.arena.Trim()
			}
		}
	}()
	return nil
}

// leave stops listening, where another process listens by now, and gives those that are
// just connecting the time to.
func (b *bridge) leave() {
	if b.admin != nil {
		b.admin.leave()
	}
	if err := b.closeRPCBind(); err != nil {
		b.log.Warn().Err(err).Msg("closing rpcbind")
	}
	b.proxy.StopAccepting()
	time.Sleep(handoverSettle)
}

// drain lets Calls finish, for as long as the configuration says or until ctx
// ends. /readyz says no from here on.
func (b *bridge) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.drainIn)
	defer cancel()
	return errors.Join(b.closeRPCBind(), b.proxy.Drain(ctx))
}

// close ends everything. It is called once, also after start failed.
func (b *bridge) close() error {
	close(b.trim)
	b.wg.Wait()
	errs := []error{b.closeRPCBind(), b.proxy.Close()}
	b.engine.Stop()
	if b.admin != nil {
		errs = append(errs, b.admin.close())
	}
	if err := b.arena.Close(); err != nil {
		b.log.Warn().Err(err).Msg("memory was not given back")
	}
	return errors.Join(errs...)
}

// alive reports whether every event loop still turns.
func (b *bridge) alive(ctx context.Context) error {
	loops := b.engine.Loops()
	turned := make(chan struct{}, len(loops))
	for _, l := range loops {
		l.Post(loop.TaskFunc(func() { turned <- struct{}{} }))
	}
	for n := range loops {
		select {
		case <-turned:
		case <-ctx.Done():
			return errors.New(strconv.Itoa(len(loops)-n) + " event loops do not turn")
		}
	}
	return nil
}

func waitReady(b *bridge, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		err := b.proxy.Ready()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
