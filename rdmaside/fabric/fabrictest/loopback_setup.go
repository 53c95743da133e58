package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

type loopbackIncoming struct {
	l      *loopbackListener
	peer   netip.AddrPort
	opts   fabric.ConnOptions // the dialling side's
	answer chan answer

	mu      sync.Mutex // guards the rest; taken before Loopback.mu
	decided bool
	gone    bool // the dialling side gave up
}

func (in *loopbackIncoming) Peer() netip.AddrPort { return in.peer }

func (in *loopbackIncoming) PrivateData() []byte { return in.opts.PrivateData }

type answer struct {
	end *loopbackConn
	err error
}

func (in *loopbackIncoming) decide() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.gone {
		return fmt.Errorf("fabrictest: accept: %w", errPeerClosed)
	}
	if in.decided {
		return errors.New("fabrictest: connection already accepted or rejected")
	}
	in.decided = true
	return nil
}

func (in *loopbackIncoming) Reject(priv []byte) error {
	if err := in.decide(); err != nil {
		return err
	}
	in.l.leave()
	in.answer <- answer{err: fmt.Errorf("fabrictest: %w (private data %q)", fabric.ErrRejected, priv)}
	return nil
}

func (in *loopbackIncoming) Accept(ctx context.Context, loop loop.Loop, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	if len(o.PrivateData) > maxPrivateData {
		return nil, fmt.Errorf("fabrictest: private data of %d octets: %w", len(o.PrivateData), fabric.ErrLimit)
	}
	if err := in.decide(); err != nil {
		return nil, err
	}
	dial, accept := newLink(in.l, in.peer, in.opts, withDefaults(o))
	if err := accept.setup(ctx, loop, h); err != nil {
		in.answer <- answer{err: fmt.Errorf("fabrictest: dial: peer gave up: %w", io.EOF)}
		return nil, err
	}
	in.answer <- answer{end: dial}
	return accept, nil
}

type loopbackListener struct {
	p        *Loopback
	name     string
	addr     netip.AddrPort
	opts     fabric.ListenOptions
	incoming func(fabric.Incoming)
	conns    int // passed to incoming and not ended; guarded by p.mu
}

func (l *loopbackListener) Addr() netip.AddrPort { return l.addr }

func (l *loopbackListener) Close() error {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	delete(l.p.listeners, l.name)
	delete(l.p.listeners, l.addr.String())
	return nil
}

// admit counts a new connection from peer, or returns the reason to refuse it.
func (l *loopbackListener) admit(peer netip.AddrPort) (reason string) {
	if l.opts.Allow != nil && !l.opts.Allow(peer.Addr()) {
		return "address"
	}
	if l.opts.Admit != nil {
		if reason, _ := l.opts.Admit(peer.Addr()); reason != "" {
			return reason
		}
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if most := l.opts.MaxConnections; most > 0 && l.conns >= most {
		l.p.mu.Unlock()
		room := l.opts.MakeRoom != nil && l.opts.MakeRoom(peer.Addr())
		l.p.mu.Lock()
		if !room {
			return "connections"
		}
	}
	l.conns++
	return ""
}

func (l *loopbackListener) leave() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.conns--
}
