package iwarp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// Reasons for which ListenOptions.Refused is called.
const (
	refusedAddress      = "address"              // Allow returned false
	refusedConnections  = "connections"          // MaxConnections, of the listener or the Provider
	refusedSockets      = "sockets"              // ListenOptions.Sockets
	refusedStarting     = "starting"             // MaxStarting
	refusedStartingAddr = "starting_per_address" // MaxStartingPerAddr
	refusedTimeout      = "timeout"              // no whole Request within Options.AcceptTimeout
	refusedRequest      = "request"              // no Request, or a Request that cannot be answered
)

// A listener accepts connections. Its start-ups run on goroutines of their own.
type listener struct {
	p        *Provider
	ln       *net.TCPListener
	opts     fabric.ListenOptions
	incoming func(fabric.Incoming)

	mu       sync.Mutex // guards the rest, and the limits in opts; a leaf
	closed   bool
	conns    int                   // connections that were passed to incoming and have not ended
	starting map[*startup]struct{} // at most MaxStarting
	silent   crowd.Crowd[*startup] // those of starting whose Request has not come
	evicted  int                   // start-ups that were closed for others and have not ended
}

var (
	_ fabric.LimitSetter    = (*listener)(nil)
	_ fabric.AcceptStopper  = (*listener)(nil)
	_ fabric.SocketListener = (*listener)(nil)
)

// Listen implements fabric.Provider. Revisions 1 and 2 of MPA are answered.
func (p *Provider) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	ln, err := loop.Listen(addr)
	if err != nil {
		return nil, fmt.Errorf("iwarp: %w", err)
	}
	return p.ListenOn(ln, o, incoming)
}

// ListenOn implements fabric.SocketProvider.
func (p *Provider) ListenOn(ln *net.TCPListener, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	if err := o.Validate(); err != nil {
		ln.Close()
		return nil, err
	}
	l := &listener{
		p: p, ln: ln, opts: o, incoming: incoming,
		starting: make(map[*startup]struct{}),
	}
	go l.accept()
	return l, nil
}

// File implements fabric.SocketListener.
func (l *listener) File() (*os.File, error) { return loop.Duplicate(l.ln) }

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
	for s := range l.starting {
		s.nc.Close()
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
		s := &startup{nc: nc, peer: addrPort(nc.RemoteAddr())}
		if reason, err := l.admit(s); reason != "" {
			nc.Close()
			l.refused(s.peer, reason, err)
			continue
		}
		go l.serve(s)
	}
}

func (l *listener) refused(peer netip.AddrPort, reason string, err error) {
	if l.opts.Refused != nil {
		l.opts.Refused(peer, reason, err)
	}
}

// done counts a connection off that has ended.
func (l *listener) done() {
	l.mu.Lock()
	l.conns--
	l.mu.Unlock()
	l.release()
}

// release gives back what admit took from counters that the listener shares.
func (l *listener) release() {
	l.p.limits.connDone()
	if q := l.opts.Sockets; q != nil {
		q.Put()
	}
}

// serve waits for the Request and passes it to the listener's owner.
func (l *listener) serve(s *startup) {
	l.p.tune(s.nc)
	f, err := l.request(s.nc)
	reason, err := l.requested(s, err)
	if reason != "" {
		s.nc.Close()
		l.ended(s)
		l.refused(s.peer, reason, fmt.Errorf("iwarp: start-up: %w", err))
		return
	}
	in := &incoming{l: l, startup: s, req: f}
	if err := l.enter(s.peer.Addr()); err != nil {
		_ = in.refuse(nil) // after an error, too, the peer sees its connection end
		l.refused(s.peer, refusedConnections, err)
		return
	}
	l.incoming(in)
	if !in.decided {
		_ = in.Reject(nil)
	}
}

// enter counts a connection that is about to be passed to incoming, or returns why it may not be.
func (l *listener) enter(peer netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most := l.opts.MaxConnections; most > 0 && l.conns >= most {
		n := l.conns
		l.mu.Unlock()
		room := l.opts.MakeRoom != nil && l.opts.MakeRoom(peer)
		l.mu.Lock()
		if !room {
			return fmt.Errorf("iwarp: %w: %d connections", fabric.ErrLimit, n)
		}
	}
	l.conns++
	return nil
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
