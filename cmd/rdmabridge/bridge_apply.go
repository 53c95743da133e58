package main

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// apply replaces the configuration in force by c. After an error nothing has changed. A
// failure of rpcbind or of the lock manager is logged and is not an error: the bridge serves without it.
func (b *bridge) apply(c *configs.Config) error {
	listeners, upstreams, inUse, err := b.options(c)
	if err != nil {
		return err
	}
	observe, abandon, err := b.prepareObservers(c)
	if err != nil {
		closeExports(inUse.exports, b.exports)
		return err
	}
	startExports(inUse.exports, b.exports)
	if err := b.proxy.Reconfigure(listeners, upstreams); err != nil {
		abandon()
		closeExports(inUse.exports, b.exports)
		return err
	}
	if err := b.proxy.SetTenants(translate.Tenants(c)); err != nil {
		panic("BUG: tenants that configs has checked: " + err.Error())
	}
	observe()
	b.adopt(inUse)
	limitDescriptors(c, b.engine.Sockets(), &b.log)
	b.engine.LimitHandshakes(c.TLS.Handshakes, c.TLS.Waiting)
	old := b.config
	b.config = c
	b.drainIn.Store(int64(c.Drain.Timeout))
	b.watchEvery.Store(int64(c.Reload.Watch))
	b.proxy.RefreshTLS(false) // checks the clients of listeners that trust others now
	if err := b.updateNLM(); err != nil {
		b.log.Error().Str("event", "nlm_failed").Err(err).Msg("the lock manager is not running")
	}
	if err := b.updateRPCBind(old); err != nil {
		b.log.Error().Str("event", "rpcbind_failed").Err(err).Msg("rpcbind is not running")
	}
	return nil
}

// A providerSet holds the provider of each RDMA listener and upstream, by the kind and
// the name of its owner.
type providerSet map[string]usedProvider

// A usedProvider is a provider in use.
type usedProvider struct {
	fabric.Provider
	kind     string // of the owner: listener or upstream
	owner    string // the name of the listener or upstream
	settings string // the settings that the provider was made from, for comparison
}

// parts are the providers, what the files of TLS are used by, and what knows exports.
type parts struct {
	providers providerSet
	tls       tlsSet
	exports   map[string]exportWatch // by the name of the listener
}

// options translates the listeners and upstreams of c for package proxy. An owner whose
// settings are the same as before keeps its provider and its TLS. The caller passes inUse to adopt
// when c is in force.
func (b *bridge) options(c *configs.Config) (listeners []settings.ListenerOptions, upstreams []settings.UpstreamOptions, inUse parts, err error) {
	inUse = parts{make(providerSet), make(tlsSet), make(map[string]exportWatch)}
	use := func(kind, owner, settings string, p *fabric.Provider) {
		if *p == nil {
			return
		}
		key := kind + " " + owner
		if old, ok := b.providers[key]; ok && old.settings == settings {
			*p = old.Provider
		}
		inUse.providers[key] = usedProvider{*p, kind, owner, settings}
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		o, err := translate.Listener(l, b.arena.Pin, b.log)
		if err != nil {
			return nil, nil, parts{}, err
		}
		if o.TLS, err = b.listenerTLS(l, inUse.tls); err != nil {
			return nil, nil, parts{}, err
		}
		o.Exports = b.watchExports(c, l, inUse.exports)
		use("listener", l.Name, l.Address, &o.Provider)
		listeners = append(listeners, o)
	}
	for i := range c.Upstreams {
		u := c.Upstreams[i]
		o, err := translate.Upstream(&u, b.arena.Pin, b.log)
		if err != nil {
			return nil, nil, parts{}, err
		}
		if o.TLS, err = b.upstreamTLS(&u, inUse.tls); err != nil {
			return nil, nil, parts{}, err
		}
		// These settings go to the pool or to a connection, not to the provider.
		u.Pool, u.Endpoints, u.Inline, u.Backoff = configs.Pool{}, nil, configs.Inline{}, configs.Backoff{}
		u.Timeouts.Unavailable, u.Timeouts.Probe = 0, 0
		u.Failover, u.Balance = 0, ""
		use("upstream", u.Name, fmt.Sprint(u), &o.Provider)
		upstreams = append(upstreams, o)
	}
	return listeners, upstreams, inUse, nil
}

// adopt makes inUse the parts of b and registers the metrics of the new ones.
func (b *bridge) adopt(inUse parts) {
	for key, p := range inUse.providers {
		if b.providers[key] != p {
			b.countProvider(p)
		}
	}
	b.providers, b.tls = inUse.providers, inUse.tls
	closeExports(b.exports, inUse.exports)
	b.exports = inUse.exports
}
