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

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// A Listener waits after an error of accept, longer each time.
const (
	acceptBackoff    = 5 * time.Millisecond // after the first error
	acceptBackoffMax = time.Second
)

// A Listener accepts connections on a goroutine of its own. Its methods are safe for concurrent use.
type Listener struct {
	engine   *Engine
	ln       *net.TCPListener
	counters *counters
	open     func(*Conn) RecordHandler
	opts     atomic.Pointer[ListenOptions]
	ctx      context.Context // done when Close was called
	cancel   context.CancelFunc
	donec    chan struct{} // closed when the accept goroutine exits
	failures loglimit.Seldom

	mu      sync.Mutex   // guards the rest; a leaf
	clients crowd.Counts // connections of clients
	starts  crowd.Counts // connections of proxies that have not said who the client is
}

// Listen starts a Listener. For each connection that it admits it calls h on the accept
// goroutine, or on the loop when a proxy had to say who the client is; h returns the owner of the
// connection, and may call Loop, LocalAddr, RemoteAddr and WireAddr of the Conn. If the connection
// ends before its loop has it, no method of the owner is called.
func (e *Engine) Listen(o ListenOptions, h func(*Conn) RecordHandler) (*Listener, error) {
	if err := o.Validate(); err != nil {
		if o.Socket != nil {
			_ = o.Socket.Close()
		}
		return nil, err
	}
	if o.Name == "" {
		o.Name = o.Address
	}
	ln, err := o.socket()
	if err != nil {
		return nil, err
	}
	l := &Listener{
		engine:   e,
		ln:       ln,
		counters: e.counted.of(ofListener, o.Name),
		open:     h,
		donec:    make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.store(o)

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

// socket returns the socket to listen on.
func (o *ListenOptions) socket() (*net.TCPListener, error) {
	if o.Socket != nil {
		return o.Socket, nil
	}
	ln, err := loop.Listen(o.Address) // tune enables keepalive for every connection
	if err != nil {
		return nil, fmt.Errorf("tcpframe: %w", err)
	}
	return ln, nil
}

// File returns another descriptor of the listening socket.
func (l *Listener) File() (*os.File, error) { return loop.Duplicate(l.ln) }

// Addr returns the address that the Listener listens on.
func (l *Listener) Addr() netip.AddrPort { return eventloop.AddrPort(l.ln.Addr()) }

// Update replaces the limits, the allow list and the ConnOptions, for connections that
// are accepted from now on. Address, Name and Socket stay. The options must be valid:
// see ListenOptions.Validate.
func (l *Listener) Update(o ListenOptions) {
	if err := o.Validate(); err != nil {
		panic("BUG: tcpframe: Update: " + err.Error())
	}
	l.store(o)
}

// store makes o the options of connections that are accepted from now on.
func (l *Listener) store(o ListenOptions) {
	o.Socket = nil
	o.Allow, o.Proxies = crowd.Unmapped(o.Allow), crowd.Unmapped(o.Proxies)
	if len(o.Proxies) > 0 {
		l.counters.countProxies()
	}
	l.opts.Store(&o)
}

// Close stops accepting and waits until the accept goroutine has exited. Connections that
// were accepted stay.
func (l *Listener) Close() error {
	l.cancel()
	err := l.ln.Close()
	<-l.donec
	e := l.engine
	e.mu.Lock()
	e.listeners = slices.DeleteFunc(e.listeners, func(x *Listener) bool { return x == l })
	e.mu.Unlock()
	if errors.Is(err, net.ErrClosed) {
		return nil // Close was called before
	}
	return err
}

// accept runs until Close, whatever errors accept(2) returns.
func (l *Listener) accept() {
	defer close(l.donec)
	var backoff time.Duration
	var pace pacer
	for l.ctx.Err() == nil {
		if !l.sleep(pace.wait()) {
			return
		}
		c, err := l.ln.AcceptTCP()
		if err == nil {
			backoff = 0
			if o := l.opts.Load(); l.admit(c, o) {
				pace.came(o.Rate)
			}
			continue
		}
		if l.ctx.Err() != nil {
			return
		}
		// For instance "too many open files" or "no buffer space". Clients wait in the
		// backlog until accept works again.
		backoff = min(max(2*backoff, acceptBackoff), acceptBackoffMax)
		l.failures.Line(&l.engine.log, zerolog.ErrorLevel, "accept_failed").Err(err).Str("listener", l.counters.name).Dur("retry_in_ms", backoff).Msg("cannot accept a connection, retrying after the backoff")
		l.sleep(backoff)
	}
}

// sleep waits for d. It reports false, at once, when Close was called.
func (l *Listener) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// acceptBurst is how long connections that do not come are saved up at a Rate.
const acceptBurst = time.Second

// A pacer says when connections may come at a Rate. The zero pacer lets one come at once.
type pacer struct{ meter ratelimit.Meter }

// wait returns how long it takes until the next connection may come.
func (p *pacer) wait() time.Duration {
	return time.Duration(p.meter.Wait(ratelimit.At(time.Now()), 0, 0))
}

// came notes that a connection has come.
func (p *pacer) came(rate int) {
	if rate <= 0 {
		*p = pacer{}
		return
	}
	// The first connection after a second of silence is the first of rate connections at once.
	step := ratelimit.Per(rate)
	p.meter.Charge(ratelimit.At(time.Now()), step, int64(acceptBurst)-step)
}

// admit gives c to a loop, or closes it. It reports whether it was let in.
func (l *Listener) admit(c *net.TCPConn, o *ListenOptions) bool {
	peer := eventloop.AddrPort(c.RemoteAddr())
	proxy := crowd.Within(o.Proxies, peer.Addr())
	enter := l.enter
	if proxy {
		enter = l.enterProxy
	}
	if why, err := enter(peer, o); err != nil {
		if err != errAdmit {
			l.counters.refuse(peer, netip.AddrPort{}, why, err)
		}
		_ = c.SetLinger(0) // RST: the kernel need not remember the connection
		c.Close()
		return false
	}
	err := tune(c, o.Conn.SilentTimeout)
	if err == nil {
		loop := l.engine.place(o.preferred(peer.Addr(), proxy))
		now := l.engine.Now()
		var a *announcement
		if proxy {
			a = &announcement{due: now + int64(o.ProxyTimeout)}
		}
		x := newConn(loop, c, &o.Conn, l.counters, now, l, a)
		if !proxy {
			x.setHandler(l.open(x))
		}
		if err = loop.AttachSocket(c, x.sock); err == nil {
			return true
		}
	}
	c.Close()
	in := &l.clients
	if proxy {
		in = &l.starts
	}
	l.leave(in, peer.Addr())
	if !errors.Is(err, errClosed) {
		l.counters.refuse(peer, netip.AddrPort{}, reasonAttach, err)
	}
	return true
}

// preferred returns the loop that a client at a should have, or nil. Of a client behind a proxy nobody knows the
// address yet.
func (o *ListenOptions) preferred(a netip.Addr, proxy bool) *Loop {
	if o.Prefer == nil || proxy {
		return nil
	}
	return o.Prefer(a)
}

// privilegedPorts is where the ports end that only privileged processes can have.
const privilegedPorts = 1024

// enter counts a connection from peer, which has just been accepted, or returns the limit that it would
// exceed.
func (l *Listener) enter(peer netip.AddrPort, o *ListenOptions) (reason, error) {
	if why, err := o.admits(peer); err != nil {
		return why, err
	}
	replaces, why, err := l.enterClient(peer.Addr(), o)
	if err != nil {
		return why, err
	}
	if q := &l.engine.sockets; !q.Take(replaces) && !(o.makeRoom(peer.Addr()) && q.Take(true)) {
		l.uncount(&l.clients, peer.Addr())
		return reasonTotal, tooManySockets(q)
	}
	return "", nil
}

// admits returns why no client at peer may connect.
func (o *ListenOptions) admits(peer netip.AddrPort) (reason, error) {
	if len(o.Allow) > 0 && !crowd.Within(o.Allow, peer.Addr()) {
		return reasonDenied, errors.New("tcpframe: address is not in the allow list")
	}
	if o.Privileged && (peer.Port() >= privilegedPorts || peer.Port() == 0) {
		return reasonPort, fmt.Errorf("tcpframe: port is not below %d", privilegedPorts)
	}
	if o.Admit != nil && !o.Admit(peer) {
		return "", errAdmit
	}
	return "", nil
}

// errAdmit says that ListenOptions.Admit has refused a connection.
var errAdmit = errors.New("tcpframe: not admitted")

func (o *ListenOptions) makeRoom(a netip.Addr) bool { return o.MakeRoom != nil && o.MakeRoom(a) }

func tooManySockets(q *Sockets) error {
	return fmt.Errorf("tcpframe: process already has %d connections; a higher RLIMIT_NOFILE allows more", q.Limit())
}

// enterClient counts a connection of a client at a, or returns the limit that it would exceed. replaces
// says that another connection is being closed for it.
func (l *Listener) enterClient(a netip.Addr, o *ListenOptions) (replaces bool, why reason, err error) {
	host := crowd.HostOf(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.clients.Of(host); o.MaxConnsPerAddr > 0 && n >= o.MaxConnsPerAddr {
		return false, reasonAddrConns, fmt.Errorf("tcpframe: address already has %d connections, its limit", n)
	}
	if n := l.clients.All(); o.MaxConns > 0 && n >= o.MaxConns {
		l.mu.Unlock()
		replaces = o.makeRoom(a)
		l.mu.Lock()
		if !replaces {
			return false, reasonConns, fmt.Errorf("tcpframe: listener already has %d connections, its limit", n)
		}
	}
	l.clients.Add(host)
	return replaces, "", nil
}

// leave uncounts a connection from a that is counted among those of in, and its socket.
func (l *Listener) leave(in *crowd.Counts, a netip.Addr) {
	l.engine.sockets.Put()
	l.uncount(in, a)
}

// uncount uncounts a connection from a among those of in, which is l.clients or l.starts.
func (l *Listener) uncount(in *crowd.Counts, a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in.Remove(crowd.HostOf(a))
}
