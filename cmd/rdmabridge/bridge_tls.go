package main

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
)

// A tlsSet has what the files of TLS are used by, by the kind and the name of its owner. An owner whose
// settings are the same after a reload keeps it, and with it the keys of session tickets.
type tlsSet map[string]usedTLS

// A usedTLS is the Server of a listener or the Client of an upstream.
type usedTLS struct {
	settings string // that it was made from, for comparison
	server   *tlsconf.Server
	client   *tlsconf.Client
}

// listenerTLS translates the setting tls of a listener.
func (b *bridge) listenerTLS(l *configs.Listener, inUse tlsSet) (*settings.ListenerTLS, error) {
	if l.RDMA() || !l.TLS.On() {
		return nil, nil
	}
	files := l.TLS
	files.Mode = "" // no matter for the files
	key, text := "listener "+l.Name, fmt.Sprint(files)
	u := b.tls[key]
	if u.settings != text {
		var err error
		if u.server, err = translate.TLSServer(&l.TLS); err != nil {
			return nil, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		u.settings = text
	}
	inUse[key] = u
	return &settings.ListenerTLS{Required: l.TLS.Mode == configs.TLSRequired, Server: u.server}, nil
}

// upstreamTLS translates the setting tls of an upstream.
func (b *bridge) upstreamTLS(o *configs.Upstream, inUse tlsSet) (*reach.TLS, error) {
	if o.RDMA() || !o.TLS.On() {
		return nil, nil
	}
	key, text := "upstream "+o.Name, fmt.Sprint(o.TLS)
	u := b.tls[key]
	if u.settings != text {
		var err error
		if u.client, err = translate.TLSClient(&o.TLS); err != nil {
			return nil, fmt.Errorf("upstream %s: %w", o.Name, err)
		}
		u.settings = text
	}
	inUse[key] = u
	return &reach.TLS{Required: o.TLS.Mode == configs.TLSRequired, Client: u.client}, nil
}

// watchTLS looks at the files of TLS every reload.watch until stop is closed.
func (b *bridge) watchTLS(stop <-chan struct{}) {
	repeat(func() time.Duration { return time.Duration(b.watchEvery.Load()) }, stop, func() { b.proxy.RefreshTLS(false) })
}
