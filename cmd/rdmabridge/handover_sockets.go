package main

import (
	"os"

	"github.com/rdmabridge/rdmabridge/internal/handover"
	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// handedOver returns a duplicate of every socket that this process listens on, and a pipe for the names that it has learned.
func (b *bridge) handedOver() *handover.State {
	s := &handover.State{Ready: b.proxy.Ready() == nil, Identity: b.identity}
	for address, socket := range b.proxy.Sockets() {
		f, err := socket.File()
		s.Add(handover.KindListener, address, f, err)
	}
	if b.admin != nil {
		f, err := loop.Duplicate(b.admin.Socket())
		s.Add(handover.KindAdmin, b.admin.Address(), f, err)
	}
	if w := b.names.Load(); w != nil {
		in, out, err := os.Pipe()
		if s.Add(handover.KindNames, "", in, err); err == nil {
			w.Tell(out, func() {
				b.log.Warn().Str("event", "handover_names").Msg("hand-over: the other process does not get all names; it learns them again when clients look them up")
			})
		}
	}
	b.locks.mu.Lock()
	defer b.locks.mu.Unlock()
	if b.locks.server != nil {
		tcp, udp, err := b.locks.server.Files()
		s.Add(handover.KindNLM, b.locks.config.Address, tcp, err)
		if err == nil {
			s.Add(handover.KindNLMUDP, b.locks.config.Address, udp, nil)
		}
	}
	b.rpcbindMu.Lock()
	defer b.rpcbindMu.Unlock()
	if b.rpcbind != nil {
		tcp, udp, err := b.rpcbind.Files()
		s.Add(handover.KindRPCBind, b.rpcbindAddress, tcp, err)
		if err == nil {
			s.Add(handover.KindRPCBindUDP, b.rpcbindAddress, udp, nil)
		}
	}
	return s
}
