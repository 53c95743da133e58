package listener

import (
	"context"
	"net"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Start listens on socket, which it takes over, or at the listener's address if socket is nil.
func (l *Listener) Start(ctx context.Context, socket *net.TCPListener) error {
	if l.IsRDMA {
		return l.startRDMA(ctx, socket)
	}
	o := l.tcpOptions(l.Settings())
	o.Socket = socket
	tcp, err := l.Engine.Listen(o, func(c *tcpframe.Conn) tcpframe.RecordHandler { return l.ServeTCP(l, c) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.tcp = tcp
	l.mu.Unlock()
	l.Log.Info().Str("event", "listening").Stringer("address", tcp.Addr()).Str("transport", "tcp").Msg("listening")
	return nil
}

// Update puts the settings t in force.
func (l *Listener) Update(t *Settings) {
	t.describePolicy(l)
	l.describeTLS(t.Opts.TLS)
	old := l.current.Swap(t)
	l.Follow()
	t.Policy.ForgetSeries(l.Metrics, l.Name, old.Policy)
	old.Rates.Replaced(t.Rates) // after follow: clients that waited go on under the new limits
	l.mu.Lock()
	tcp, rdma := l.tcp, l.rdma
	l.mu.Unlock()
	if tcp != nil {
		tcp.Update(l.tcpOptions(t))
	}
	if r, ok := rdma.(fabric.LimitSetter); ok {
		r.SetLimits(t.Opts.MaxConnections, t.Opts.MaxStarting, t.Opts.MaxStartingPerAddress)
	}
	if rdma != nil {
		l.sweepLater()
	}
}
