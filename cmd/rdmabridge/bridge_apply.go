package main

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/proxy"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// apply makes c the configuration in force. An error says that nothing happened, or,
// of rpcbind alone, that it does not answer.
func (b *bridge) apply(c *configs.Config) error {
	listeners, upstreams, has, err := b.options(c)
	if err != nil {
		return err
	}
	if err := b.proxy.Reconfigure(listeners, upstreams); err != nil {
		return err
	}
	has()
	old := b.config
	b.config = c
	b.drainIn = c.Drain.Timeout.Value()
	if err := b.updateRPCBind(old); err != nil {
		b.log.Error().Err(err).Msg("rpcbind does not answer")
	}
	return nil
}

// A provider is one that a listener or an upstream has, and what it was made of.
type provider struct {
	fabric.Provider
	name, of string
}

// options are those of c's listeners and upstreams. Providers that they have already
// they keep, unless what they are made of has changed.
// has makes them the bridge's, once the rest of c is.
func (b *bridge) options(c *configs.Config) (listeners []proxy.ListenerOptions, upstreams []proxy.UpstreamOptions, has func(), err error) {
	providers := make(map[string]provider)
	keep := func(what, name, of string, p *fabric.Provider) {
		if *p == nil {
			return
		}
		key := what + " " + name
		if old, ok := b.providers[key]; ok && old.of == of {
			*p = old.Provider
		}
		providers[key] = provider{*p, name, of}
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		o, err := listenerOptions(l, b.log)
		if err != nil {
			return nil, nil, nil, err
		}
		keep("listener", l.Name, l.Address, &o.Provider)
		listeners = append(listeners, o)
	}
	for i := range c.Upstreams {
		u := c.Upstreams[i]
		o := upstreamOptions(&u, b.log)
		// What the pool or a connection is told does not count.
		u.Pool, u.Endpoints, u.Inline, u.Backoff = configs.Pool{}, nil, configs.Inline{}, configs.Backoff{}
		u.Timeouts.Unavailable, u.Timeouts.Probe = 0, 0
		u.Failover, u.Balance = 0, ""
		keep("upstream", u.Name, fmt.Sprint(u), &o.Provider)
		upstreams = append(upstreams, o)
	}
	return listeners, upstreams, func() {
		for key, p := range providers {
			if b.providers[key] != p {
				b.countCopies(p.name, p.Provider)
			}
		}
		b.providers = providers
	}, nil
}
