package main

import (
	"errors"
	"os"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// sockets returns a duplicate of every socket that this process listens on, and the
// greeting that names them in the same order. The caller closes the files, also when
// there is an error.
func (b *bridge) sockets() (files []*os.File, g greeting, err error) {
	g = greeting{Version: handoverVersion, PID: os.Getpid(), Ready: b.proxy.Ready() == nil, Identity: b.identity}
	add := func(kind, address string, f *os.File, e error) {
		if e != nil {
			err = errors.Join(err, e)
			return
		}
		files = append(files, f)
		g.Sockets = append(g.Sockets, handedSocket{kind, address})
	}
	for address, s := range b.proxy.Sockets() {
		f, e := s.File()
		add(socketListener, address, f, e)
	}
	if b.admin != nil {
		f, e := loop.Duplicate(b.admin.Socket())
		add(socketAdmin, b.admin.Address(), f, e)
	}
	b.rpcbindMu.Lock()
	defer b.rpcbindMu.Unlock()
	if b.rpcbind != nil {
		tcp, udp, e := b.rpcbind.Files()
		add(socketRPCBind, b.rpcbindAddress, tcp, e)
		if e == nil {
			add(socketRPCBindUDP, b.rpcbindAddress, udp, nil)
		}
	}
	return files, g, err
}
