package tcpframe

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

// A Loop is an event loop with what its Conns share. It implements loop.SocketLoop.
type Loop struct {
	*eventloop.Loop
	memoryTimeout    time.Duration  // constant, as the next two
	servers, clients *tlsloop.Queue // of connections that were accepted, and that were dialled

	outPool
	run       []byte   // what a Conn's deliverAll parses; nil outside of it
	runAt     int      // octets of run that were taken
	relay     relay    // the last of them, which another Conn is to copy
	timed     []*Conn  // the connections that sweep looks at
	wire      []byte   // octets of TLS records, during one open
	spareOuts [][]byte // spare buffers of TLS records
	outs      int      // buffers of TLS records in use
}

func newLoop(l *eventloop.Loop) *Loop {
	return &Loop{Loop: l, outPool: newOutPool()}
}

var _ loop.SocketLoop = (*Loop)(nil)
