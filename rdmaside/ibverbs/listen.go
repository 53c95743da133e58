//go:build ibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Reasons for which ListenOptions.Refused is called.
const (
	refusedAddress      = "address"              // Allow returned false
	refusedConnections  = "connections"          // MaxConnections, of the listener or the Provider
	refusedStarting     = "starting"             // MaxStarting
	refusedStartingAddr = "starting_per_address" // MaxStartingPerAddr
	refusedDevice       = "device"               // Options.Select has another device, port or GID
)

// A listener listens with one id. A request is complete when it comes, so there are no silent
// start-ups: a connection is starting from its request until Accept or Reject has returned.
type listener struct {
	p        *Provider
	e        *engine
	addr     netip.AddrPort // constant after the first listen
	incoming func(fabric.Incoming)
	closedc  chan struct{} // closed by Close

	making sync.Mutex // held while an id is made or destroyed; taken before mu

	mu       sync.Mutex // guards the rest, and the limits in opts; taken before engine.mu
	opts     fabric.ListenOptions
	id       uint64 // 0 while its device is away
	closed   bool
	conns    int // connections that were passed to incoming and have not ended
	starting crowd.Counts
}

var (
	_ fabric.LimitSetter   = (*listener)(nil)
	_ fabric.AcceptStopper = (*listener)(nil)
)

// backlog is how many requests the kernel holds. It drops what comes beyond, and peers repeat it.
const backlog = 128

// Listen implements fabric.Provider.
func (p *Provider) Listen(addr string, o fabric.ListenOptions, incoming func(fabric.Incoming)) (fabric.Listener, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	at, err := resolveListen(addr)
	if err != nil {
		return nil, err
	}
	e, err := p.acquire()
	if err != nil {
		return nil, err
	}
	l := &listener{p: p, e: e, incoming: incoming, closedc: make(chan struct{}), opts: o}
	if err := l.listen(at); err != nil {
		p.release(e)
		return nil, fmt.Errorf("ibverbs: listen at %v: %w", at, err)
	}
	return l, nil
}

// listen makes the id, unless Close was called. The engine knows the id before it is bound: from then on its device may be
// removed, and an event about an id that the engine does not know is lost.
func (l *listener) listen(at netip.AddrPort) error {
	l.making.Lock()
	defer l.making.Unlock()
	id, err := createID(l.e.events)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		destroyID(id)
		return net.ErrClosed
	}
	l.id = id
	l.e.mu.Lock()
	l.e.listeners[id] = l
	l.e.mu.Unlock()
	l.mu.Unlock()
	if err := l.bind(id, at); err != nil {
		l.forget()
		return err
	}
	return nil
}

// bind makes id listen at an address.
func (l *listener) bind(id uint64, at netip.AddrPort) error {
	if err := bindAddr(id, at); err != nil {
		return err
	}
	if err := l.p.mayListen(id); err != nil {
		return err
	}
	if tos := l.p.opts.TOS; tos != 0 {
		if err := setTOS(id, tos); err != nil {
			return err
		}
	}
	if !l.addr.IsValid() {
		l.addr, _ = idAddrs(id)
	}
	return listenID(id, backlog)
}

// forget destroys the id, and reports whether there was one. Connections of which incoming knows stay. The caller holds
// making.
func (l *listener) forget() bool {
	l.mu.Lock()
	id := l.id
	l.id = 0
	l.e.mu.Lock()
	delete(l.e.listeners, id)
	l.e.mu.Unlock()
	l.mu.Unlock()
	if id != 0 {
		destroyID(id)
	}
	return id != 0
}

// relistenEvery is how often a listener whose device is away looks whether it is back. Tests shorten it.
var relistenEvery = time.Second

// removed follows the removal of the device. The kernel removes it when its ids are destroyed, and
// the listener listens again when a device has its address.
func (l *listener) removed(id uint64) {
	defer l.p.release(l.e) // which event has held
	if !l.lost(id) {
		return // an event before this one said so
	}
	l.p.opts.Log.Warn().Str("event", "rdma_listener_lost").Stringer("address", l.addr).Msg("the listener's RDMA device was removed; it listens again when a device has its address")
	for {
		select {
		case <-l.closedc:
			return
		case <-time.After(relistenEvery):
		}
		if err := l.listen(l.addr); err == nil {
			l.p.opts.Log.Info().Str("event", "rdma_listener_returned").Stringer("address", l.addr).Msg("listening again")
			return
		}
	}
}

// lost forgets id, whose device was removed. It reports false if the listener has another one by now, or none.
func (l *listener) lost(id uint64) bool {
	l.making.Lock()
	defer l.making.Unlock()
	l.mu.Lock()
	known := l.id == id
	l.mu.Unlock()
	return known && l.forget()
}

// Addr implements fabric.Listener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// SetLimits implements fabric.LimitSetter.
func (l *listener) SetLimits(connections, starting, startingPerAddr int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opts.MaxConnections, l.opts.MaxStarting, l.opts.MaxStartingPerAddr = connections, starting, startingPerAddr
}

// StopAccepting implements fabric.AcceptStopper.
func (l *listener) StopAccepting() error { return l.Close() }

// Close implements fabric.Listener.
func (l *listener) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	close(l.closedc)
	l.making.Lock()
	l.forget()
	l.making.Unlock()
	l.p.release(l.e)
	return nil
}

// event receives an event about the listener itself on the engine's goroutine, which it must not
// block.
func (l *listener) event(ev cmEvent) {
	if ev.event == deviceRemoval && l.p.hold(l.e) {
		go l.removed(ev.id)
	}
}

// request checks a request and passes it to the owner of the listener. It holds the engine, because the
// listener may be closed meanwhile.
func (l *listener) request(id *cmID, ev cmEvent) {
	defer l.p.release(l.e)
	_, peer := idAddrs(id.handle)
	in := &incomingConn{l: l, id: id, ev: ev, peer: peer}
	reason, err := refusedDevice, l.p.selects(id.handle)
	if err != nil {
		err = fmt.Errorf("ibverbs: connection from %v: %w", peer, err)
	} else {
		reason, err = l.admit(peer.Addr())
	}
	if err != nil {
		_ = rejectID(id.handle, nil)
		id.destroy()
		if l.opts.Refused != nil {
			l.opts.Refused(peer, reason, err)
		}
		return
	}
	l.incoming(in)
	if !in.decided {
		_ = in.Reject(nil)
	}
	l.started(peer.Addr())
}

// admit counts a connection, or returns the reason to refuse it.
func (l *listener) admit(peer netip.Addr) (reason string, err error) {
	if l.opts.Allow != nil && !l.opts.Allow(peer) {
		return refusedAddress, fmt.Errorf("ibverbs: %v is not allowed", peer)
	}
	if l.opts.Admit != nil {
		if reason, err := l.opts.Admit(peer); reason != "" {
			return reason, err
		}
	}
	over := func(n, most int) bool { return most > 0 && n >= most }
	host := crowd.HostOf(peer)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return refusedConnections, net.ErrClosed
	case over(l.starting.Of(host), l.opts.MaxStartingPerAddr):
		return refusedStartingAddr, fmt.Errorf("ibverbs: %w: %d connections starting from %v", fabric.ErrLimit, l.starting.Of(host), host.Addr())
	case over(l.starting.All(), l.opts.MaxStarting):
		return refusedStarting, fmt.Errorf("ibverbs: %w: %d connections starting", fabric.ErrLimit, l.starting.All())
	}
	if n := l.conns; over(n, l.opts.MaxConnections) {
		l.mu.Unlock()
		room := l.opts.MakeRoom != nil && l.opts.MakeRoom(peer)
		l.mu.Lock()
		if !room {
			return refusedConnections, fmt.Errorf("ibverbs: %w: %d connections", fabric.ErrLimit, n)
		}
	}
	if err := l.p.admit(); err != nil {
		return refusedConnections, err
	}
	l.p.hold(l.e) // for the connection; it succeeds, because request holds it too
	l.conns++
	l.starting.Add(host)
	return "", nil
}

// started counts a connection off those that are starting.
func (l *listener) started(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting.Remove(crowd.HostOf(peer))
}

// ended counts a connection off. It may block.
func (l *listener) ended() {
	l.mu.Lock()
	l.conns--
	l.mu.Unlock()
	l.p.conns.Add(-1)
	l.p.release(l.e)
}

// resolveListen returns the address to listen at. An empty host means all addresses.
func resolveListen(addr string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return a, nil
	}
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ibverbs: %w", err)
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		if a.IP != nil {
			return netip.AddrPort{}, errors.New("ibverbs: no address in " + addr)
		}
		ip = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(a.Port)), nil
}
