package proxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

func (l *listener) startRDMA(ctx context.Context, socket *net.TCPListener) error {
	t := l.settings()
	o := fabric.ListenOptions{
		Allow: l.allowed, Admit: l.admitRDMA, MaxConnections: t.opts.MaxConnections,
		MaxStarting: t.opts.MaxStarting, MaxStartingPerAddr: t.opts.MaxStartingPerAddress,
		MakeRoom: l.makeRoom, Sockets: l.p.engine.Sockets(), Refused: l.refused,
	}
	incoming := func(in fabric.Incoming) { l.incoming(ctx, in) }
	var rdma fabric.Listener
	var err error
	if p, ok := t.opts.Provider.(fabric.SocketProvider); ok && socket != nil {
		rdma, err = p.ListenOn(socket, o, incoming)
	} else {
		if socket != nil {
			_ = socket.Close()
		}
		rdma, err = t.opts.Provider.Listen(t.opts.Address, o, incoming)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.rdma = rdma
	l.mu.Unlock()
	l.sweepLater()
	l.log.Info().Str("event", "listening").Stringer("address", rdma.Addr()).Str("transport", "rdma").Msg("listening")
	return nil
}

// incoming accepts or rejects an RDMA client, on a goroutine of its own.
func (l *listener) incoming(ctx context.Context, in fabric.Incoming) {
	if !l.privileged(in.Peer()) {
		_ = in.Reject(nil)
		l.refused(in.Peer(), refusedPort, errPort)
		return
	}
	l.mu.Lock()
	draining := l.draining
	full := l.full(in.Peer().Addr())
	l.mu.Unlock()
	if full || draining {
		_ = in.Reject(nil) // after an error, too, the peer sees its connection end
		if full {
			l.refused(in.Peer(), refusedAddress, errCrowded)
		} else {
			l.refused(in.Peer(), refusedDraining, errDraining)
		}
		return
	}
	home := l.p.homeRDMA()
	defer home.rdmaClients.Add(-1)
	if _, err := l.settings().responder.Accept(ctx, in, home); err != nil {
		reason := refusedSetup
		if errors.Is(err, rdmaside.ErrNoReceives) {
			reason = refusedMemory
			l.p.makeRoom()
		}
		l.refused(in.Peer(), reason, err)
	}
}

// homeRDMA returns the loop with the fewest RDMA clients, and counts another one there. If clients had the loops in turn,
// those that come and go, such as probes, would put those that stay on one loop.
func (p *Proxy) homeRDMA() *eventLoop {
	p.homes.Lock()
	defer p.homes.Unlock()
	home := slices.MinFunc(p.loops, func(a, b *eventLoop) int { return cmp.Compare(a.rdmaClients.Load(), b.rdmaClients.Load()) })
	home.rdmaClients.Add(1)
	return home
}

// The ports that only privileged processes of a host can have.
const firstPrivileged, lastPrivileged = 1, 1023

var errPort = errors.New("proxy: port is not privileged")

// privileged reports whether an RDMA client at peer may connect as far as its port says. A
// provider that does not show the port says 0.
func (l *listener) privileged(peer netip.AddrPort) bool {
	return !l.settings().opts.Privileged || firstPrivileged <= peer.Port() && peer.Port() <= lastPrivileged
}

// full reports whether the host of a has as many RDMA clients as it may. l.mu is held.
func (l *listener) full(a netip.Addr) bool {
	most := l.settings().opts.MaxConnectionsPerAddress
	return most > 0 && l.clients.Count(a) >= most
}

// fullOffLock does what full does, without l.mu.
func (l *listener) fullOffLock(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full(a)
}

// outstanding is how many Calls of RDMA clients are not answered yet.
func (l *listener) outstanding() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for m := range l.clients.All() {
		if c, ok := m.Value.client.(*rdmaClient); ok {
			n += c.conn.Outstanding()
		}
	}
	return n
}
