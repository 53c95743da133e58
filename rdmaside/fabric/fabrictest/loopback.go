// Package fabrictest is what tests of RDMA need: a provider in memory
// ([NewLoopback]) that can be told to fail, a loop ([NewLoop]), and the suite
// that every provider passes ([Run]).
//
// # The loopback provider
//
// Work is carried out by the side that posts it: at the end of the poster's pass
// it copies octets straight into the Receives and the registered memory of the
// other side, as an adapter would, whatever the other side's loop is doing. So
// memory changes under an owner that broke the rules, and a Receive that is
// posted late is missed. Only handler calls go through the loops.
//
// A message that finds no Receive, or a Receive too short, and any access beyond
// what was registered, ends the connection, as on iWARP.
package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Reasons for which a loopback connection ends.
var (
	ErrNoReceive  = errors.New("fabrictest: message without a posted Receive")
	ErrTooLong    = errors.New("fabrictest: message longer than the Receive")
	ErrAccess     = errors.New("fabrictest: remote access error")
	ErrInvalidate = errors.New("fabrictest: remote invalidation of a handle that is not live")
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

type loopbackListener struct {
	p        *Loopback
	name     string
	addr     netip.AddrPort
	opts     fabric.ListenOptions
	incoming func(fabric.Incoming)
	conns    int // established and starting; guarded by p.mu
}

// Listen listens at addr, which is any string not in use; an empty one, or one
// that ends in ":0", gets a name of its own.
func (p *Loopback) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	if o.MaxConnections == 0 {
		o.MaxConnections = 1024
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

func (l *loopbackListener) Addr() netip.AddrPort { return l.addr }

func (l *loopbackListener) Close() error {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	delete(l.p.listeners, l.name)
	delete(l.p.listeners, l.addr.String())
	return nil
}

// admit counts a new connection from peer, or says why not.
func (l *loopbackListener) admit(peer netip.AddrPort) (reason string) {
	if l.opts.Allow != nil && !l.opts.Allow(peer.Addr()) {
		return "address"
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.conns >= l.opts.MaxConnections {
		return "connections"
	}
	l.conns++
	return ""
}

func (l *loopbackListener) leave() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.conns--
}

// Dial connects to a listener of the same Loopback.
func (p *Loopback) Dial(ctx context.Context, loop loop.Loop, addr string, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
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
		_ = in.Reject(nil) // nobody decided
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
	// It is being accepted right now: hang up on the result.
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

type answer struct {
	end *Conn
	err error
}

type loopbackIncoming struct {
	l      *loopbackListener
	peer   netip.AddrPort
	opts   fabric.ConnOptions // of the dialling side
	answer chan answer

	mu      sync.Mutex // guards the rest; taken before Loopback.mu
	decided bool
	gone    bool // the dialling side gave up
}

func (in *loopbackIncoming) Peer() netip.AddrPort { return in.peer }
func (in *loopbackIncoming) PrivateData() []byte  { return in.opts.PrivateData }

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

// A link is a connection with both its ends.
type link struct {
	p *Loopback
	l *loopbackListener

	// mu guards the state of both ends, and is held while octets are copied. It is
	// taken before Loopback.mu; handlers and loops are never called with it.
	mu   sync.Mutex
	ends [2]*Conn
	dead bool
}

func newLink(l *loopbackListener, peer netip.AddrPort, dialOpts, acceptOpts fabric.ConnOptions) (dial, accept *Conn) {
	k := &link{p: l.p, l: l}
	side := func(o, peer fabric.ConnOptions, local, remote netip.AddrPort) *Conn {
		return &Conn{
			link: k, opts: o, regions: make(map[fabric.Handle]region),
			info: fabric.Info{
				Provider: "loopback", Local: local, Peer: remote, PrivateData: peer.PrivateData,
				IRD: min(o.IRD, max(peer.ORD, 0)), ORD: min(max(o.ORD, 0), peer.IRD),
			},
			active: time.Now(),
		}
	}
	dial = side(dialOpts, acceptOpts, peer, l.addr)
	accept = side(acceptOpts, dialOpts, l.addr, peer)
	dial.dialed = true
	dial.peer, accept.peer = accept, dial
	k.ends = [2]*Conn{dial, accept}
	return dial, accept
}

// end ends both ends, dial and accept, for the reasons given: nil means that the
// other one closed.
func (k *link) end(dial, accept error) {
	k.mu.Lock()
	k.die(dial, accept)
	wake := k.wakes()
	k.mu.Unlock()
	wake.post()
}

// die is end with mu held.
func (k *link) die(reasons ...error) {
	if k.dead {
		return
	}
	k.dead = true
	for i, c := range k.ends {
		c.reason = reasons[i]
		if c.reason == nil && !c.closing {
			c.reason = errPeerClosed
		}
		clear(c.regions)
		if c.state == open {
			c.state = ending
			c.due = true
		}
	}
	k.l.leave()
}

// fail ends the link because of work that c posted.
func (k *link) fail(err error) { k.die(err, err) }

// wakes collects the ends whose loops have to run them.
func (k *link) wakes() (w wakes) {
	for i, c := range k.ends {
		if c.due && !c.scheduled && c.loop != nil {
			c.scheduled = true
			w[i] = c
		}
	}
	return w
}

// wakes are ends to post to their loops, once no lock is held.
type wakes [2]*Conn

func (w wakes) post() {
	for _, c := range w {
		if c != nil {
			c.loop.Post(c)
		}
	}
}

func newHandle(taken map[fabric.Handle]region) fabric.Handle {
	for {
		h := fabric.Handle(rand.Uint32())
		if _, ok := taken[h]; h != 0 && !ok {
			return h
		}
	}
}
