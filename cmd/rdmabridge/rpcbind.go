package main

import (
	"errors"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
)

// startRPCBind starts the rpcbind service, which tells clients where the listeners are. It must
// be called after the listeners and the lock manager have started, because it publishes their addresses.
func (b *bridge) startRPCBind() error {
	c := b.config
	if !c.RPCBind.Enabled() {
		return nil
	}
	o := rpcbind.Options{Address: c.RPCBind.Address, Engine: b.engine, Log: b.log, Metrics: b.metrics, Allow: translate.Prefixes(c.RPCBind.Allow)}
	var err error
	if o.TCP, o.UDP, err = b.inherited.RPCBind(c.RPCBind.Address); err != nil {
		return err
	}
	if o.Services, err = translate.RPCBind(c, b.proxy.Addr, b.nlmAddr()); err != nil {
		return err
	}
	s, err := rpcbind.Listen(o)
	if err != nil {
		return err
	}
	b.rpcbindMu.Lock()
	b.rpcbind, b.rpcbindAddress = s, o.Address
	b.rpcbindMu.Unlock()
	return nil
}

// closeRPCBind stops the rpcbind service. It does nothing if the service is not running.
func (b *bridge) closeRPCBind() error {
	b.rpcbindMu.Lock()
	s := b.rpcbind
	b.rpcbind = nil
	b.rpcbindMu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close()
}

// updateRPCBind applies the configuration in force to rpcbind. old is the configuration that
// was in force before. It restarts the service only if the address has changed.
func (b *bridge) updateRPCBind(old *configs.Config) error {
	c := b.config
	if b.rpcbind == nil || old.RPCBind.Address != c.RPCBind.Address {
		return errors.Join(b.closeRPCBind(), b.startRPCBind())
	}
	services, err := translate.RPCBind(c, b.proxy.Addr, b.nlmAddr())
	if err != nil {
		return err
	}
	b.rpcbind.Allow(translate.Prefixes(c.RPCBind.Allow))
	b.rpcbind.Publish(services)
	return nil
}
