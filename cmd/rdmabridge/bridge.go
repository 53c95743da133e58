package main

import (
	"context"
	"errors"
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
