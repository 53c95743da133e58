// Package fabrictest helps to test RDMA: it has a provider in memory ([NewLoopback]) that
// tests can make fail, a loop ([NewLoop]), and the suite that every provider passes
// ([Run]).
//
// # The loopback provider
//
// The side that posts work carries it out: at the end of the poster's pass it copies
// octets straight into the Receives and the registered memory of the other side, as an
// adapter would, even while the other side's loop runs. So the memory of an owner that
// breaks the rules changes while the owner uses it, and a message finds no Receive that
// is posted too late. Only handler calls go through the loops.
//
// A message that finds no Receive, or a Receive too short, and any access beyond
// what was registered, ends the connection, as on iWARP.
package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Reasons for which a loopback connection ends.
var (
	ErrNoReceive  = errors.New("fabrictest: message without a posted Receive")
	ErrTooLong    = errors.New("fabrictest: message longer than the Receive")
	errAccess     = errors.New("fabrictest: remote access error")
	errInvalidate = errors.New("fabrictest: remote invalidation of a handle that is not live")
	ErrInjected   = errors.New("fabrictest: injected failure")
	errPeerClosed = fmt.Errorf("fabrictest: closed by peer: %w", io.EOF)
)

const maxPrivateData = 248

// A Loopback is a provider whose connections never leave the process. An address
// is any string; the address of the listener works as well.
type Loopback struct {
	mu        sync.Mutex // guards all below; a leaf
	listeners map[string]*loopbackListener
	ports     uint16
	hook      func(Operation) Verdict
	async     bool
	kept      bool // peers may not invalidate handles
}

// NewLoopback returns a provider without listeners.
func NewLoopback() *Loopback {
	return &Loopback{listeners: make(map[string]*loopbackListener), ports: 20000}
}

// Name returns "loopback".
func (p *Loopback) Name() string { return "loopback" }

func (p *Loopback) addr() netip.AddrPort {
	p.ports++
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), p.ports)
}

// Listen listens at addr, which is any string not in use; an empty one, or one
// that ends in ":0", gets a name of its own.
func (p *Loopback) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &loopbackListener{p: p, name: addr, addr: p.addr(), opts: o, incoming: incoming}
	if n := len(addr); n == 0 || n >= 2 && addr[n-2:] == ":0" {
		l.name = l.addr.String()
	}
	if p.listeners[l.name] != nil {
		return nil, fmt.Errorf("fabrictest: listen at %q: %w", addr, syscall.EADDRINUSE)
	}
	p.listeners[l.name] = l
	p.listeners[l.addr.String()] = l
	return l, nil
}

// Dial connects to a listener of the same Loopback.
func (p *Loopback) Dial(ctx context.Context, loop loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	p.mu.Lock()
	o = o.Dialled(!p.kept)
	p.mu.Unlock()
	if len(o.PrivateData) > maxPrivateData {
		return nil, fmt.Errorf("fabrictest: private data of %d octets: %w", len(o.PrivateData), fabric.ErrLimit)
	}
	p.mu.Lock()
	l := p.listeners[addr]
	local := p.addr()
	p.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("fabrictest: dial %q: %w", addr, syscall.ECONNREFUSED)
	}
	if reason := l.admit(local); reason != "" {
		err := fmt.Errorf("fabrictest: dial %q: refused: %s", addr, reason)
		if l.opts.Refused != nil {
			l.opts.Refused(local, reason, err)
		}
		return nil, err
	}
	in := &loopbackIncoming{l: l, peer: local, opts: withDefaults(o), answer: make(chan answer, 1)}
	go func() {
		l.incoming(in)
		_ = in.Reject(nil) // has no effect after Accept or Reject
	}()
	select {
	case a := <-in.answer:
		if a.err != nil {
			return nil, a.err
		}
		if err := a.end.setup(ctx, loop, h); err != nil {
			return nil, err
		}
		return a.end, nil
	case <-ctx.Done():
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.decided {
		in.decided, in.gone = true, true
		l.leave()
		return nil, ctx.Err()
	}
	// The other side is accepting the connection right now. Close it then.
	go func() {
		if a := <-in.answer; a.err == nil {
			a.end.link.end(ctx.Err(), nil)
		}
	}()
	return nil, ctx.Err()
}

func withDefaults(o fabric.ConnOptions) fabric.ConnOptions {
	def := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
		*n = max(*n, 0)
	}
	def(&o.Receives, 256)
	def(&o.Sends, 1024)
	def(&o.Handles, 4096)
	def(&o.IRD, 32)
	o.PrivateData = append([]byte(nil), o.PrivateData...)
	return o
}
