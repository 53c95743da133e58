package doctor

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// maxPorts bounds the source ports that are tried. Another process, the bridge itself perhaps, may
// have many.
const maxSourcePorts = 32

// A tcpConversation is a conversation over TCP.
type tcpConversation struct {
	conn    *tcpframe.Conn
	records chan []byte   // one deep; further records are dropped
	endedc  chan struct{} // closed when the connection has ended
	err     error         // set before endedc is closed

	program Program   // that the probe for TLS is for
	start   *tlsStart // nil without TLS, and once it has begun; the loop's
	secured bool      // TLS has begun; set before start.done gets the result
}

// dialTCP connects as the bridge does, from the source that the configuration has.
func (p *Prober) dialTCP(ctx context.Context, t *Target, address string) (conversation, error) {
	o := tcpframe.DialOptions{
		Name: t.Upstream, Reset: true,
		Conn: tcpframe.ConnOptions{
			MaxRecord: maxTCPReply, MaxOutbound: maxTCPReply, OutboundLimit: 2 * maxTCPReply,
			StallTimeout: t.Call, SendTimeout: t.Call,
		},
	}
	dial := func(port uint16) (conversation, error) {
		c := &tcpConversation{records: make(chan []byte, 1), endedc: make(chan struct{}), program: t.Programs[0]}
		var start *tlsStart
		if t.TLS != nil {
			start = &tlsStart{config: t.TLS.Config, xid: rand.Uint32(), done: make(chan error, 1)}
			c.start = start
		}
		o.LocalAddr = netip.AddrPortFrom(t.Source, port)
		conn, err := p.engine.Dial(ctx, address, p.engine.Loops()[0], o, c)
		if err != nil {
			return nil, err
		}
		c.conn = conn
		if start != nil {
			if err := c.secure(ctx, t, start); err != nil {
				return nil, err
			}
		}
		return c, nil
	}
	if t.Low == 0 {
		return dial(0)
	}
	var err error
	for n := range min(int(t.High-t.Low)+1, maxSourcePorts) {
		var c conversation
		if c, err = dial(t.High - uint16(n)); !errors.Is(err, tcpframe.ErrPortTaken) {
			return c, err
		}
	}
	return nil, err
}

// Opened is part of tcpframe.RecordHandler.
func (c *tcpConversation) Opened(conn *tcpframe.Conn) {
	if c.start != nil {
		c.start.probe(conn, c.program)
	}
}

// Record is part of tcpframe.RecordHandler.
func (c *tcpConversation) Record(conn *tcpframe.Conn, b tcpframe.Buffer) {
	if s := c.start; s != nil {
		if s.record(conn, b.Bytes()); !conn.Securing() {
			c.start = nil // there is no TLS
		}
		b.Release()
		return
	}
	select {
	case c.records <- slices.Clone(b.Bytes()):
	default:
	}
	b.Release()
}

// Closed is part of tcpframe.RecordHandler.
func (c *tcpConversation) Closed(_ *tcpframe.Conn, err error) {
	c.err = err
	close(c.endedc)
}

// null is part of conversation.
func (c *tcpConversation) null(ctx context.Context, xid uint32, message []byte) ([]byte, error) {
	c.conn.Loop().Post(loop.TaskFunc(func() {
		if c.conn.Open() {
			c.conn.Send([][]byte{message}, released{})
		}
	}))
	for {
		select {
		case b := <-c.records:
			if oncrpc.IsReply(b, xid) {
				return b, nil
			}
		case <-c.endedc:
			return nil, c.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// released is the Releaser of memory that the garbage collector frees.
type released struct{}

// Release does nothing.
func (released) Release() {}

// describe is part of conversation.
func (c *tcpConversation) describe(e *Endpoint) {
	e.TLS = c.secured
	e.Local, e.Peer = c.conn.LocalAddr().String(), c.conn.RemoteAddr().String()
}

// close is part of conversation.
func (c *tcpConversation) close() {
	c.conn.Loop().Post(loop.TaskFunc(func() { c.conn.Abort(nil) }))
	select {
	case <-c.endedc:
	case <-time.After(closeWait):
	}
}
