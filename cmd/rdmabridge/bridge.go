package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/admin"
	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/handover"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/tap"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// trimInterval is how often the arena returns memory to the kernel that no message has
// used since the last time.
const trimInterval = 30 * time.Second

// settleTime is how long a process that hands over serves the clients that it has before it drains. Connections that it
// has just accepted come up, and clients that mount are ready with it: libnfs does not connect again while it mounts.
const settleTime = time.Second

// A bridge is one configuration put to work: the arena, the engine, the proxy and the
// servers beside it.
type bridge struct {
	log    zerolog.Logger
	config *configs.Config // in force; replaced by apply

	drainIn  atomic.Int64    // drain.timeout of config, a time.Duration
	draining atomic.Bool     // from the first moment of a drain on
	stop     chan stopReason // one deep: something else than a signal wants a drain

	sink *logsink.Sink // where log writes; nil in tests that have no use for it

	hardening hardening // constant

	identity string    // of this bridge among others; constant
	started  time.Time // constant

	loaded atomic.Pointer[status.Config] // nil if there is no file
	shown  atomic.Pointer[shownConfig]   // what config print shows

	observers observers
	accessed  configs.AccessLog // settings of observers.access
	traced    configs.Tracing   // settings of observers.tracer
	named     configs.Names     // settings of observers.names
	audited   configs.AuditLog  // settings of observers.audit

	taps  *tap.Hub                    // has the captures and observers.names
	names atomic.Pointer[names.Watch] // that of observers.names, for the control socket; nil for none
	paged atomic.Bool                 // the status page shows names

	metrics *metrics.Registry
	arena   *regmem.Arena
	engine  *tcpframe.Engine
	proxy   *proxy.Proxy
	pages   *admin.Handler  // answers operators, on the admin address and on the control socket
	admin   *admin.Server   // nil if the configuration has none
	control *control.Server // nil if the configuration has none, or it could not listen

	rpcbindMu      sync.Mutex      // guards rpcbind and rpcbindAddress; a leaf
	rpcbind        *rpcbind.Server // nil if the configuration has none
	rpcbindAddress string          // from the configuration, not resolved

	locks lockService

	exports    map[string]exportWatch // by the name of the listener
	providers  providerSet            // in use by listeners and upstreams
	tls        tlsSet                 // the same
	watchEvery atomic.Int64           // reload.watch of config, a time.Duration

	inherited *handover.Inheritance // nil if this process did not take over

	trim chan struct{} // closed to stop trimming, and the watch for problems
	wg   sync.WaitGroup
}

// newBridge makes the parts that c describes and connects them to each other. It opens
// no socket. Start uses the sockets of in, which may be nil.
func newBridge(c *configs.Config, log zerolog.Logger, in *handover.Inheritance) (b *bridge, err error) {
	b = &bridge{started: time.Now(), log: log, config: c, inherited: in, stop: make(chan stopReason, 1), identity: identity(c, in), metrics: metrics.NewForProcess(), trim: make(chan struct{})}
	b.drainIn.Store(int64(c.Drain.Timeout))
	b.show(c, nil)
	if b.arena, err = regmem.New(regmem.Options{Budget: int64(c.Memory.Budget)}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.arena.Close())
		}
	}()
	b.engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: c.Loops, BusyPoll: max(c.BusyPoll.Value(), 0), Log: log, Metrics: b.metrics, Handshakes: c.TLS.Handshakes, HandshakeQueue: c.TLS.Waiting})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.engine.Stop()
		}
	}()
	registry := translate.Registry(c)
	o := proxy.Options{Log: log, Metrics: b.metrics, Engine: b.engine, Arena: b.arena, Registry: registry, Identity: b.identity, Socket: in.Listener}
	b.watchEvery.Store(int64(c.Reload.Watch))
	var inUse parts
	o.Tenants = translate.Tenants(c)
	if o.Listeners, o.Upstreams, inUse, err = b.options(c); err != nil {
		return nil, err
	}
	if b.proxy, err = proxy.New(o); err != nil {
		return nil, err
	}
	b.taps = tap.NewHub(b.proxy, b.names.Load)
	b.adopt(inUse)
	limitDescriptors(c, b.engine.Sockets(), &b.log)
	b.registerMetrics()
	if err := b.makePages(c); err != nil {
		return nil, err
	}
	return b, nil
}

// start listens for clients and connects to upstreams.
func (b *bridge) start() error {
	if err := b.startObservers(); err != nil {
		return err
	}
	if b.admin != nil {
		if err := b.admin.Start(); err != nil {
			return err
		}
	}
	startExports(b.exports, nil)
	// Drain and Close end the connections, so their context is never cancelled.
	if err := b.proxy.Start(context.Background()); err != nil {
		return err
	}
	if err := b.startNLM(); err != nil {
		return err
	}
	if err := b.startRPCBind(); err != nil {
		return err
	}
	b.pages.Start()
	b.wg.Go(func() { b.pages.LogProblems(&b.log, b.trim) })
	b.wg.Go(func() { b.watchTLS(b.trim) })
	b.every(trimInterval, func() bool { b.arena.Trim(); return true })
	return nil
}

// every calls f at an interval, until f returns false or b ends.
func (b *bridge) every(interval time.Duration, f func() (again bool)) {
	b.wg.Go(func() {
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-b.trim:
				return
			case <-t.C:
			}
			if !f() {
				return
			}
		}
	})
}

// leave stops listening after another process has taken over the sockets. It serves the clients
// that it has for settleTime.
func (b *bridge) leave() {
	if b.admin != nil {
		b.admin.StopAccepting()
	}
	if b.control != nil {
		b.control.StopAccepting()
	}
	if err := b.closeRPCBind(); err != nil {
		b.log.Warn().Str("event", "rpcbind_failed").Err(err).Msg("rpcbind did not close cleanly")
	}
	if err := b.closeNLM(); err != nil {
		b.log.Warn().Str("event", "nlm_failed").Err(err).Msg("the lock manager did not close cleanly")
	}
	b.proxy.StopAccepting()
	time.Sleep(settleTime)
}

// drain lets Calls finish until drain.timeout is over or ctx is done. /readyz reports
// that the bridge is not ready from here on.
func (b *bridge) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(b.drainIn.Load()))
	defer cancel()
	return errors.Join(b.closeRPCBind(), b.proxy.Drain(ctx))
}

// close closes every connection and frees all memory. It is called once, also when
// start has failed.
func (b *bridge) close() error {
	close(b.trim)
	b.wg.Wait()
	b.pages.Close()
	closeExports(b.exports, nil)
	errs := []error{b.closeRPCBind(), b.closeNLM(), b.proxy.Close()}
	b.engine.Stop()
	b.closeObservers()
	if b.admin != nil {
		errs = append(errs, b.admin.Close())
	}
	if b.control != nil {
		errs = append(errs, b.control.Close())
	}
	if err := b.arena.Close(); err != nil {
		b.log.Warn().Str("event", "memory_leaked").Err(err).Msg("memory leak: not all message memory was released")
	}
	return errors.Join(errs...)
}

// alive returns an error unless every event loop runs a task before ctx is done.
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
			return errors.New(strconv.Itoa(len(loops)-n) + " event loops do not respond")
		}
	}
	return nil
}

// waitReady waits until every upstream that a listener needs is connected, but no longer
// than timeout.
func (b *bridge) waitReady(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := b.proxy.Ready()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
