package chaos

import (
	"context"
	"net"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A life is one process of the bridge: all that ends with the process.
type life struct {
	h     *proxytest.Harness
	proxy *proxy.Proxy
	iwarp *iwarp.Provider // towards upstreams
	front *iwarp.Provider // towards clients
}

// life is the present one.
func (w *world) life() life {
	w.living.RLock()
	defer w.living.RUnlock()
	return life{w.h, w.proxy, w.iwarp, w.front}
}

// succeed puts l in the place of the present one, which it returns.
func (w *world) succeed(l life) (old life) {
	w.living.Lock()
	defer w.living.Unlock()
	old = life{w.h, w.proxy, w.iwarp, w.front}
	w.h, w.proxy, w.iwarp, w.front = l.h, l.proxy, l.iwarp, l.front
	return old
}

// newLife makes the parts of a process with that much memory that do not depend on its
// configuration.
func (w *world) newLife(budget int64) (l life) {
	l.h = &proxytest.Harness{T: w.t, Metrics: metrics.New(), Log: w.h.Log, Registry: ulb.NewRegistry(ulb.Limits{})}
	nfs.Register(l.h.Registry)
	var err error
	if l.h.Engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: l.h.Log, Metrics: l.h.Metrics}); err != nil {
		w.book.wrong("harness: %v", err)
	}
	if l.h.Arena, err = regmem.New(regmem.Options{Budget: budget}); err != nil {
		w.book.wrong("harness: %v", err)
	}
	l.iwarp, l.front = proxytest.IWARP(w.providers), proxytest.IWARP(w.providers)
	return l
}

// begin starts the bridge of l. socket is as in proxy.Options. Addresses may still be
// those of connections that are ending.
func (w *world) begin(l *life, p *plan, socket func(string) *net.TCPListener) bool {
	ls, us := p.options(l)
	var made, started error
	testkit.Settles(10*time.Second, func() bool {
		if started != nil {
			// Its shares of the memory are taken: another arena, as another process has.
			_ = l.h.Arena.Close()
			l.h.Arena, _ = regmem.New(regmem.Options{Budget: w.h.Arena.Budget()})
		}
		l.proxy, made = proxy.New(proxy.Options{
			Log: l.h.Log, Metrics: l.h.Metrics, Engine: l.h.Engine, Arena: l.h.Arena, Registry: l.h.Registry,
			Listeners: proxytest.Listeners(ls...), Upstreams: proxytest.Upstreams(us...), Socket: socket,
		})
		if made != nil {
			return true
		}
		started = l.proxy.Start(context.Background())
		return started == nil
	})
	switch {
	case made != nil:
		w.book.wrong("the bridge cannot be made: %v", made)
	case started != nil:
		w.book.wrong("the bridge does not start: %v", started)
	default:
		return true
	}
	return false
}

// end ends the life l, which has lasted until now, within drain, and checks that nothing
// is left of it.
func (w *world) end(l life, drain time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	err := l.proxy.Drain(ctx)
	if err == nil {
		// No client is connected, and each that was has all its Replies or saw its connection
		// closed.
		w.rested(l)
	}
	_ = l.proxy.Close()
	if err != nil {
		w.rested(l)
	}
	if !testkit.Settles(10*time.Second, func() bool { return l.h.Arena.Outstanding() == 0 }) {
		w.book.wrong("%d leases are not back at the end: %+v", l.h.Arena.Outstanding(), l.h.Arena.Stats().Accounts)
	}
	if n := l.iwarp.Handles() + l.front.Handles(); n != 0 {
		w.book.wrong("%d handles are live at the end", n)
	}
	l.h.Engine.Stop()
	if err := l.h.Arena.Close(); err != nil {
		w.book.wrong("%v", err)
	}
}
