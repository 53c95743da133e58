package tcpframe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultConns        = 4096
	defaultConnsPerAddr = 512
	defaultUserTimeout  = 2 * time.Minute
)

// acceptBackoff is how long accepting rests after an error, at first and at most.
const (
	acceptBackoff    = 5 * time.Millisecond
	acceptBackoffMax = time.Second
)

// A Listener accepts connections in a goroutine of its own. gnet's acceptor
// would stop the whole engine when descriptors run out. Methods are safe for
// concurrent use.
type Listener struct {
	engine   *Engine
	ln       *net.TCPListener
	counters *counters
	open     func(*Conn) RecordHandler
	opts     atomic.Pointer[ListenOptions]
	ctx      context.Context // done when Close was called
	cancel   context.CancelFunc
	donec    chan struct{} // closed when the accept goroutine has ended

	mu     sync.Mutex // guards conns and byAddr; a leaf
	conns  int
	byAddr map[netip.Addr]int // at most conns entries
}

// Listen starts a Listener. h is called on the accept goroutine for each
// connection that was let in, and returns its owner; only addresses may be
// asked of the Conn there. When the connection dies on its way to its loop, no
// method of the owner is called.
func (e *Engine) Listen(o ListenOptions, h func(*Conn) RecordHandler) (*Listener, error) {
	if o.Name == "" {
		o.Name = o.Address
	}
	ln := o.Socket
	if ln == nil {
		lc := net.ListenConfig{KeepAlive: -1} // admit sets it, for sockets of every origin
		opened, err := lc.Listen(context.Background(), "tcp", o.Address)
		if err != nil {
			return nil, fmt.Errorf("tcpframe: %w", err)
		}
		ln = opened.(*net.TCPListener)
	}
	o.Socket = nil
	l := &Listener{
		engine:   e,
		ln:       ln,
		counters: e.counters(o.Name),
		open:     h,
		donec:    make(chan struct{}),
		byAddr:   make(map[netip.Addr]int),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.Update(o)

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		l.cancel()
		_ = ln.Close()
		return nil, errClosed
	}
	e.listeners = append(e.listeners, l)
	go l.accept()
	return l, nil
}

// File is another descriptor of the listening socket.
func (l *Listener) File() (*os.File, error) { return l.ln.File() }

// Addr is where it listens.
func (l *Listener) Addr() netip.AddrPort { return addrPort(l.ln.Addr()) }

// Update replaces limits, allow list, KeepAlive, UserTimeout and ConnOptions, for
// connections to come. Address, Name and Socket stay.
func (l *Listener) Update(o ListenOptions) {
	setDefault(&o.MaxConns, defaultConns)
	setDefault(&o.MaxConnsPerAddr, defaultConnsPerAddr)
	allow := make([]netip.Prefix, 0, len(o.Allow))
	for _, p := range o.Allow {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		allow = append(allow, p.Masked())
	}
	o.Allow = allow
	l.opts.Store(&o)
}

// Close stops accepting and waits for the accept goroutine. Connections stay.
func (l *Listener) Close() error {
	l.cancel()
	err := l.ln.Close()
	<-l.donec
	e := l.engine
	e.mu.Lock()
	e.listeners = slices.DeleteFunc(e.listeners, func(x *Listener) bool { return x == l })
	e.mu.Unlock()
	if errors.Is(err, net.ErrClosed) {
		return nil // twice
	}
	return err
}

// accept runs until Close, whatever accept(2) says.
func (l *Listener) accept() {
	defer close(l.donec)
	var backoff time.Duration
	for l.ctx.Err() == nil {
		c, err := l.ln.AcceptTCP()
		if err == nil {
			backoff = 0
			l.admit(c)
			continue
		}
		if l.ctx.Err() != nil {
			return
		}
		// "too many open files", "no buffer space": clients wait in the backlog.
		backoff = min(max(2*backoff, acceptBackoff), acceptBackoffMax)
		l.engine.log.Error().Err(err).Str("listener", l.counters.name).Dur("backoff", backoff).Msg("accept failed")
		select {
		case <-l.ctx.Done():
		case <-time.After(backoff):
		}
	}
}

// admit lets c in or closes it.
func (l *Listener) admit(c *net.TCPConn) {
	o := l.opts.Load()
	peer := addrPort(c.RemoteAddr())
	if reason, err := l.enter(peer.Addr(), o); err != nil {
		l.counters.refuse(peer, reason, err)
		_ = c.SetLinger(0) // nothing of it is worth remembering
		c.Close()
		return
	}
	err := tune(c, o.UserTimeout)
	if err == nil {
		err = c.SetKeepAliveConfig(keepAlive(o.KeepAlive))
	}
	if err == nil {
		loop := l.engine.leastLoaded()
		x := newConn(loop, c, o.Conn, l.counters)
		x.listener = l
		x.handler = l.open(x)
		if err = loop.attach(c, x.sock); err == nil {
			return
		}
	}
	c.Close()
	l.leave(peer.Addr())
	if !errors.Is(err, errClosed) {
		l.counters.refuse(peer, reasonAttach, err)
	}
}

// enter takes a place for a connection from a.
func (l *Listener) enter(a netip.Addr, o *ListenOptions) (reason, error) {
	allowed := func(p netip.Prefix) bool { return p.Contains(a.WithZone("")) }
	if len(o.Allow) > 0 && !slices.ContainsFunc(o.Allow, allowed) {
		return reasonDenied, errors.New("tcpframe: address not allowed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case o.MaxConns > 0 && l.conns >= o.MaxConns:
		return reasonConns, fmt.Errorf("tcpframe: %d connections at this listener", l.conns)
	case o.MaxConnsPerAddr > 0 && l.byAddr[a] >= o.MaxConnsPerAddr:
		return reasonAddrConns, fmt.Errorf("tcpframe: %d connections from this address", l.byAddr[a])
	case l.engine.accepted.Add(1) > l.engine.maxConns:
		l.engine.accepted.Add(-1)
		return reasonTotal, fmt.Errorf("tcpframe: %d connections in the process", l.engine.maxConns)
	}
	l.conns++
	l.byAddr[a]++
	return "", nil
}

// leave gives the place back.
func (l *Listener) leave(a netip.Addr) {
	l.engine.accepted.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns--
	if l.byAddr[a]--; l.byAddr[a] == 0 {
		delete(l.byAddr, a)
	}
}

// keepAlive fills in defaults.
func keepAlive(k net.KeepAliveConfig) net.KeepAliveConfig {
	k.Enable = k.Idle >= 0
	setDefault(&k.Idle, 30*time.Second)
	setDefault(&k.Interval, 15*time.Second)
	setDefault(&k.Count, 4)
	return k
}
