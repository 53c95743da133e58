package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/nlm"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A lockService is the lock manager of a bridge, if its configuration has one.
type lockService struct {
	mu     sync.Mutex  // guards the fields below; a leaf
	server *nlm.Server // nil if the service is not running
	config configs.NLM // that it was started with
}

// startNLM starts the lock manager. That of a process that takes over answers when the process before has ended its own:
// they have one file.
func (b *bridge) startNLM() error {
	c := b.config.NLM
	if !c.Enabled() {
		return nil
	}
	o := translate.NLM(&c, b.identity)
	o.Log, o.Metrics = b.log, b.metrics
	var err error
	if o.TCP, o.UDP, err = b.inherited.NLM(c.Address); err != nil {
		return err
	}
	s, err := nlm.Listen(o)
	if err != nil {
		return err
	}
	b.locks.mu.Lock()
	b.locks.server, b.locks.config = s, c
	b.locks.mu.Unlock()
	return nil
}

// closeNLM stops the lock manager. It does nothing if that is not running.
func (b *bridge) closeNLM() error {
	b.locks.mu.Lock()
	s := b.locks.server
	b.locks.server = nil
	b.locks.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close()
}

// updateNLM applies the configuration in force to the lock manager. Only nlm.allow changes without a restart of the service.
func (b *bridge) updateNLM() error {
	next, before := b.config.NLM, b.locks.config
	next.Allow, before.Allow = nil, nil
	if b.locks.server == nil || fmt.Sprint(next) != fmt.Sprint(before) {
		return errors.Join(b.closeNLM(), b.startNLM())
	}
	b.locks.server.Allow(translate.Prefixes(b.config.NLM.Allow))
	return nil
}

// nlmAddr returns where the lock manager is. It is invalid if there is none.
func (b *bridge) nlmAddr() netip.AddrPort {
	b.locks.mu.Lock()
	defer b.locks.mu.Unlock()
	if b.locks.server == nil {
		return netip.AddrPort{}
	}
	return b.locks.server.Addr()
}

// locksStatus returns what the lock manager knows, or nil if there is none.
func (b *bridge) locksStatus() *status.Locks {
	b.locks.mu.Lock()
	s, of := b.locks.server, b.locks.config.Server
	b.locks.mu.Unlock()
	if s == nil {
		return nil
	}
	now := s.Snapshot()
	l := &status.Locks{Server: of, Held: now.Held, Waiting: now.Waiting, Clients: now.Clients, Most: []status.ClientLocks{}}
	for _, c := range now.Most {
		l.Most = append(l.Most, status.ClientLocks{Address: c.Client.String(), Held: c.Held, Waiting: c.Waiting})
	}
	return l
}
