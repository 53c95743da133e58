package rpcbind

import (
	"errors"
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// Limits of TCP clients. A question is one record. The Server reads the next record after
// it has sent the Reply.
const (
	maxOutbound   = 8 << 20
	maxClients    = 512
	maxPerAddress = 64
	stallTimeout  = 10 * time.Second
	idleTimeout   = 30 * time.Second
)

// listenOptions returns the options of the TCP port. Records are on the heap, at most
// maxClients times maxMessage octets.
func (s *Server) listenOptions(o Options) tcpframe.ListenOptions {
	return tcpframe.ListenOptions{
		Address: o.Address, Socket: o.TCP, Name: "rpcbind", Allow: o.Allow,
		MaxConns: maxClients, MaxConnsPerAddr: maxPerAddress,
		Conn: tcpframe.ConnOptions{
			MaxRecord:   maxMessage,
			MaxOutbound: maxOutbound, OutboundLimit: maxOutbound,
			StallTimeout: stallTimeout, SendTimeout: idleTimeout, IdleTimeout: idleTimeout,
		},
	}
}

// A client is one TCP connection. Its loop owns it.
type client struct {
	s    *Server
	conn *tcpframe.Conn // constant after Opened
}

// Opened is part of tcpframe.RecordHandler.
func (x *client) Opened(c *tcpframe.Conn) {
	x.conn = c
	if !x.s.join(x) {
		c.Close(errClosing)
	}
}

var errNoCall = errors.New("rpcbind: not an RPC Call")

// Record is part of tcpframe.RecordHandler.
func (x *client) Record(c *tcpframe.Conn, b tcpframe.Buffer) {
	defer b.Release()
	reply, ok := x.s.answer(b.Bytes(), question{local: c.LocalAddr().Addr().Unmap().WithZone("")})
	if !ok {
		c.Abort(errNoCall)
		return
	}
	if reply != nil {
		c.Pause() // until Release
		c.Send([][]byte{reply}, x)
	}
}

// Release lets the client ask the next question. The connection calls it when the kernel
// has the Reply, or when the connection has ended. It implements tcpframe.Releaser.
func (x *client) Release() {
	if !x.conn.Ended() {
		x.conn.Resume()
	}
}

// Closed is part of tcpframe.RecordHandler.
func (x *client) Closed(*tcpframe.Conn, error) { x.s.leave(x) }
