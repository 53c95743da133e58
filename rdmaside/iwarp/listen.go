package iwarp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// Reasons for which ListenOptions.Refused is called.
const (
	refusedAddress      = "address"       // Allow returned false
	refusedConnections  = "connections"   // MaxConnections, of the listener or the Provider
	refusedStarting     = "starting"      // MaxStarting
	refusedStartingAddr = "starting_addr" // MaxStartingPerAddr
	refusedTimeout      = "timeout"       // no whole Request within Options.AcceptTimeout
	refusedRequest      = "request"       // no Request, or a Request that cannot be answered
)

// A listener accepts connections. Its start-ups run on goroutines of their own.
type listener struct {
	p        *Provider
	ln       *net.TCPListener
	opts     fabric.ListenOptions
	incoming func(fabric.Incoming)

	mu       sync.Mutex // guards the rest, and the limits in opts; a leaf
	closed   bool
	conns    int
	starting map[net.Conn]netip.Addr // at most MaxStarting
	perAddr  map[netip.Addr]int
}

var (
	_ fabric.LimitSetter    = (*listener)(nil)
	_ fabric.AcceptStopper  = (*listener)(nil)
	_ fabric.SocketListener = (*listener)(nil)
)

// Listen implements fabric.Provider. Revisions 1 and 2 of MPA are answered.
func (p *Provider) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("iwarp: %w", err)
	}
	return p.ListenOn(ln.(*net.TCPListener), o, incoming)
}

// ListenOn implements fabric.SocketProvider.
func (p *Provider) ListenOn(ln *net.TCPListener, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	if err := o.Validate(); err != nil {
		ln.Close()
		return nil, err
	}
	l := &listener{
		p: p, ln: ln, opts: o, incoming: incoming,
		starting: make(map[net.Conn]netip.Addr),
		perAddr:  make(map[netip.Addr]int),
	}
	go l.accept()
	return l, nil
}

// File implements fabric.SocketListener.
func (l *listener) File() (*os.File, error) { return l.ln.File() }

// Addr implements fabric.Listener.
func (l *listener) Addr() netip.AddrPort { return addrPort(l.ln.Addr()) }

// SetLimits implements fabric.LimitSetter.
func (l *listener) SetLimits(connections, starting, startingPerAddr int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opts.MaxConnections, l.opts.MaxStarting, l.opts.MaxStartingPerAddr = connections, starting, startingPerAddr
}

// StopAccepting implements fabric.AcceptStopper.
func (l *listener) StopAccepting() error { return l.ln.Close() }

// Close implements fabric.Listener. It closes connections that are starting.
func (l *listener) Close() error {
	l.mu.Lock()
	l.closed = true
	for c := range l.starting {
		c.Close()
	}
	l.mu.Unlock()
	if err := l.ln.Close(); !errors.Is(err, net.ErrClosed) { // after StopAccepting
		return err
	}
	return nil
}

func (l *listener) accept() {
	backoff := time.Duration(0)
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			l.mu.Lock()
			closed := l.closed
			l.mu.Unlock()
			if closed || errors.Is(err, net.ErrClosed) {
				return
			}
			// Most likely the process is out of descriptors. Retry after a pause, in
			// which other connections may end.
			backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
			time.Sleep(backoff)
			continue
		}
		backoff = 0
		peer := addrPort(nc.RemoteAddr())
		if reason, err := l.admit(nc, peer.Addr()); reason != "" {
			nc.Close()
			l.refused(peer, reason, err)
			continue
		}
		go l.serve(nc, peer)
	}
}

func (l *listener) refused(peer netip.AddrPort, reason string, err error) {
	if l.opts.Refused != nil {
		l.opts.Refused(peer, reason, err)
	}
}

// admit counts a connection, or returns the reason to refuse it. It looks at the
// address and the limits, before anything is read or written.
func (l *listener) admit(nc net.Conn, peer netip.Addr) (reason string, err error) {
	if l.opts.Allow != nil && !l.opts.Allow(peer) {
		return refusedAddress, fmt.Errorf("iwarp: %v is not allowed", peer)
	}
	over := func(n, most int) bool { return most > 0 && n >= most }
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return refusedConnections, net.ErrClosed
	case over(l.conns, l.opts.MaxConnections):
		return refusedConnections, fmt.Errorf("iwarp: %w: %d connections", fabric.ErrLimit, l.conns)
	case over(len(l.starting), l.opts.MaxStarting):
		return refusedStarting, fmt.Errorf("iwarp: %w: %d connections starting", fabric.ErrLimit, len(l.starting))
	case over(l.perAddr[peer], l.opts.MaxStartingPerAddr):
		return refusedStartingAddr, fmt.Errorf("iwarp: %w: %d connections starting from %v", fabric.ErrLimit, l.perAddr[peer], peer)
	}
	if err := l.p.limits.conn(); err != nil {
		return refusedConnections, fmt.Errorf("iwarp: %w", err)
	}
	l.conns++
	l.starting[nc] = peer
	l.perAddr[peer]++
	return "", nil
}

// started counts a start-up off that has succeeded or failed.
func (l *listener) started(nc net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	peer, ok := l.starting[nc]
	if !ok {
		return
	}
	delete(l.starting, nc)
	if l.perAddr[peer]--; l.perAddr[peer] == 0 {
		delete(l.perAddr, peer)
	}
}

// done counts a connection off that has ended.
func (l *listener) done() {
	l.mu.Lock()
	l.conns--
	l.mu.Unlock()
	l.p.limits.connDone()
}

// serve waits for the Request and passes it to the listener's owner.
func (l *listener) serve(nc net.Conn, peer netip.AddrPort) {
	l.p.tune(nc)
	f, err := l.request(nc)
	if err != nil {
		nc.Close()
		l.started(nc)
		l.done()
		reason := refusedRequest
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			reason = refusedTimeout
		}
		l.refused(peer, reason, fmt.Errorf("iwarp: start-up: %w", err))
		return
	}
	in := &incoming{l: l, nc: nc, peer: peer, req: f}
	l.incoming(in)
	if !in.decided {
		_ = in.Reject(nil)
	}
}

// request reads the Request. An Initiator sends nothing more before it has the Reply,
// so octets behind the Request are an error: they would be an FPDU out of place.
func (l *listener) request(nc net.Conn) (wire.Frame, error) {
	if d := l.p.opts.AcceptTimeout; d > 0 {
		_ = nc.SetDeadline(time.Now().Add(d))
	}
	f, err := readFrame(nc, false)
	if err != nil {
		return f, err
	}
	if err := checkRequest(f); err != nil {
		return f, err
	}
	if c, ok := nc.(*net.TCPConn); ok {
		if raw, err := c.SyscallConn(); err == nil && waiting(raw) {
			return f, &wire.FrameError{Reason: "octets behind the Request"}
		}
	}
	return f, nil
}
