package listener

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

func (l *Listener) startRDMA(ctx context.Context, socket *net.TCPListener) error {
	t := l.Settings()
	o := fabric.ListenOptions{
		Allow: l.allowed, Admit: l.admitRDMA, MaxConnections: t.Opts.MaxConnections,
		MaxStarting: t.Opts.MaxStarting, MaxStartingPerAddr: t.Opts.MaxStartingPerAddress,
		MakeRoom: l.makeRoom, Sockets: l.Engine.Sockets(), Refused: l.Refused,
	}
	incoming := func(in fabric.Incoming) { l.incoming(ctx, in) }
	var rdma fabric.Listener
	var err error
	if p, ok := t.Opts.Provider.(fabric.SocketProvider); ok && socket != nil {
		rdma, err = p.ListenOn(socket, o, incoming)
	} else {
		if socket != nil {
			_ = socket.Close()
		}
		rdma, err = t.Opts.Provider.Listen(t.Opts.Address, o, incoming)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.rdma = rdma
	l.mu.Unlock()
	l.sweepLater()
	l.Log.Info().Str("event", "listening").Stringer("address", rdma.Addr()).Str("transport", "rdma").Msg("listening")
	return nil
}

// incoming accepts or rejects an RDMA client, on a goroutine of its own.
func (l *Listener) incoming(ctx context.Context, in fabric.Incoming) {
	if !l.privileged(in.Peer()) {
		_ = in.Reject(nil)
		l.Refused(in.Peer(), refusedPort, errPort)
		return
	}
	l.mu.Lock()
	draining := l.draining
	full := l.full(in.Peer().Addr())
	l.mu.Unlock()
	if full || draining {
		_ = in.Reject(nil) // after an error, too, the peer sees its connection end
		if full {
			l.Refused(in.Peer(), refusedAddress, errCrowded)
		} else {
			l.Refused(in.Peer(), refusedDraining, errDraining)
		}
		return
	}
	home := l.Room.home()
	defer home.rdmaClients.Add(-1)
	if _, err := l.Settings().responder.Accept(ctx, in, home.SocketLoop); err != nil {
		reason := refusedSetup
		if errors.Is(err, rdmaside.ErrNoReceives) {
			reason = refusedMemory
			l.Room.makeRoom()
		}
		l.Refused(in.Peer(), reason, err)
	}
}

// The ports that only privileged processes of a host can have.
const firstPrivileged, lastPrivileged = 1, 1023

var errPort = errors.New("proxy: port is not privileged")

// privileged reports whether an RDMA client at peer may connect as far as its port says. A
// provider that does not show the port says 0.
func (l *Listener) privileged(peer netip.AddrPort) bool {
	return !l.Settings().Opts.Privileged || firstPrivileged <= peer.Port() && peer.Port() <= lastPrivileged
}

// full reports whether the host of a has as many RDMA clients as it may. l.mu is held.
func (l *Listener) full(a netip.Addr) bool {
	most := l.Settings().Opts.MaxConnectionsPerAddress
	return most > 0 && l.clients.Count(a) >= most
}

// RefuseIfFull returns an error, which it counts and logs, if the host of peer has as many RDMA clients as it may: full
// does not count the connections that are being set up.
func (l *Listener) RefuseIfFull(peer netip.AddrPort) error {
	l.mu.Lock()
	full := l.full(peer.Addr().Unmap())
	l.mu.Unlock()
	if !full {
		return nil
	}
	l.Refused(peer, refusedAddress, errCrowded)
	return errCrowded
}

// RDMAOpened and RDMAEnded count an RDMA connection on the loop with this number.
func (l *Listener) RDMAOpened(here int) { l.Loops[here].rdmaClients.Add(1) }
func (l *Listener) RDMAEnded(here int)  { l.Loops[here].rdmaClients.Add(-1) }

// sweepLater starts the timer that has idle RDMA clients closed, if there is an idle timeout.
// One timer serves all clients, so that a client costs no timer of its own. It fires eight
// times in IdleTimeout and posts one task to each loop. (tcpframe closes idle TCP clients.)
func (l *Listener) sweepLater() {
	idle := l.Settings().Opts.IdleTimeout
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sweeper != nil {
		l.sweeper.Stop()
		l.sweeper = nil
	}
	if idle > 0 && !l.draining {
		l.sweeper = time.AfterFunc(min(max(idle/8, 10*time.Millisecond), time.Minute), l.sweep)
	}
}

// sweep closes the clients that are idle now.
func (l *Listener) sweep() {
	if idle := l.Settings().Opts.IdleTimeout; idle > 0 {
		l.eachRDMA(func(c Client) { c.CloseIfUnused(idle) })
	}
	l.sweepLater()
}

// eachRDMA calls f for every RDMA client, on the client's loop. It does not wait for that.
func (l *Listener) eachRDMA(f func(Client)) {
	if !l.IsRDMA {
		return
	}
	for i, clients := range l.byLoop() {
		if len(clients) == 0 {
			continue
		}
		l.Loops[i].Post(loop.TaskFunc(func() {
			for _, c := range clients {
				f(c)
			}
		}))
	}
}
