package iwarp

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// A conn drives a qp from a socket of a loop.SocketLoop. It belongs to that
// loop, which calls its Stream methods. The ULP calls its fabric.Conn methods on the
// same loop, inside a callback of this connection or outside.
//
// A fabric.Conn method never delivers completions. They are delivered at the end of
// the callback that is running, or by the Flush at the end of the loop's pass.
type conn struct {
	// Constant after newConn.
	p       *Provider
	loop    loop.Loop
	info    fabric.Info
	release func() // counts the connection off the limits; called once

	setupc chan error    // one deep: the result of Attached
	begun  atomic.Uint32 // setup* below; decides between Attached and a Dial whose context ended

	// Owned by the loop.
	h          fabric.Handler
	qp         *qp
	sock       loop.Socket
	busy       bool // inside a Stream callback, whose end calls step
	copied     bool // SendCopy promised a call of h.Completed
	unwritten  int  // posts since the last write while the connection is ahead; see later
	unanswered int  // Sends posted less messages received
	blocked    bool // Writable will be called
	finSent    bool
	gone       bool  // Detached was called
	closed     bool  // h.Closed was called, or never will be
	asked      bool  // Close was called, so the end is not logged
	reason     error // the error given to Close

	last     time.Time // when octets last arrived
	stuck    time.Time // since when the socket is full without progress
	deadline time.Time // of closing; zero when not closing
	timer    *time.Timer
	kick     bool                                        // MPA initiator: the first FPDU may need a kick
	kicks    int                                         // number of kicks still to come
	refresh  uint64                                      // stream position at which to ask for the MSS again
	ahead    [2 * (wire.CRCLen + wire.MaxHeaderLen)]byte // readDirect's scratch for a trailer and a header
}

const (
	setupPending = iota
	setupRunning
	setupAbandoned
)

var (
	_ fabric.Conn              = (*conn)(nil)
	_ fabric.PlacementTracker  = (*conn)(nil)
	_ fabric.RemoteInvalidator = (*conn)(nil)
	_ fabric.CopySender        = (*conn)(nil)
	_ loop.Stream              = (*stream)(nil)
)

// PostReceive implements fabric.Conn.
func (c *conn) PostReceive(id uint64, buf []byte) error { return c.qp.postReceive(id, buf) }

// PostSend implements fabric.Conn.
func (c *conn) PostSend(id uint64, s fabric.Send) error {
	op := wire.OpSend
	if s.Invalidate != 0 {
		op = wire.OpSendInvalidate
	}
	err := c.qp.post(id, op, s.Parts, uint32(s.Invalidate), 0)
	if err == nil {
		c.unanswered++
	}
	return c.posted(err)
}

// SendCopy implements fabric.CopySender.
func (c *conn) SendCopy(parts [][]byte) bool {
	if !c.qp.sendCopy(parts) {
		return false
	}
	c.unanswered++
	c.copied = true
	c.later()
	return true
}

// Unwritten implements fabric.CopySender.
func (c *conn) Unwritten() bool { return c.qp.tx.batch != nil }

// PostWrite implements fabric.Conn.
func (c *conn) PostWrite(id uint64, w fabric.Write) error {
	return c.posted(c.qp.post(id, wire.OpWrite, w.Parts, uint32(w.To.Handle), w.To.Offset))
}

// PostRead implements fabric.Conn.
func (c *conn) PostRead(id uint64, r fabric.Read) error {
	return c.posted(c.qp.postRead(id, r.Into, r.From))
}

func (c *conn) posted(err error) error {
	if err == nil {
		c.later()
	}
	return err
}

// Flush implements fabric.Conn.
func (c *conn) Flush() {
	if c.sock != nil {
		c.write()
		c.later()
	}
}

// Register implements fabric.Conn.
func (c *conn) Register(buf []byte, a fabric.Access) (fabric.Region, error) {
	return c.qp.register(buf, a)
}

// Invalidate implements fabric.Conn. The handle is always dead when it returns.
func (c *conn) Invalidate(_ uint64, h fabric.Handle) (bool, error) {
	c.qp.invalidate(uint32(h))
	return true, nil
}

// RemoteInvalidation implements fabric.RemoteInvalidator.
func (c *conn) RemoteInvalidation() bool { return true }

// Placed implements fabric.PlacementTracker.
func (c *conn) Placed(h fabric.Handle) uint32 { return c.qp.stags.placed(uint32(h)) }

// Info implements fabric.Conn.
func (c *conn) Info() fabric.Info { return c.info }

// LastActivity implements fabric.Conn.
func (c *conn) LastActivity() time.Time { return c.last }

// newConn returns a conn with the parameters that start-up agreed on. It calls release
// when its socket is closed.
func (p *Provider) newConn(nc net.Conn, loop loop.Loop, cfg qpConfig, a agreed, h fabric.Handler, release func()) *conn {
	return &conn{
		p: p, loop: loop, h: h, release: release,
		qp:     newQP(cfg),
		setupc: make(chan error, 1),
		last:   time.Now(),
		info: fabric.Info{
			Provider: p.Name(),
			Local:    addrPort(nc.LocalAddr()), Peer: addrPort(nc.RemoteAddr()),
			PrivateData: a.private,
			IRD:         a.ird, ORD: a.ord,
		},
	}
}

// attach hands nc to the loop and waits until the ULP's Setup has returned.
func (c *conn) attach(ctx context.Context, loop loop.SocketLoop, nc net.Conn) error {
	_ = nc.SetDeadline(time.Time{})
	if err := loop.Attach(nc, (*stream)(c)); err != nil {
		c.release()
		return fmt.Errorf("iwarp: attach: %w", err)
	}
	select {
	case err := <-c.setupc:
		return err
	case <-ctx.Done():
	}
	if c.begun.CompareAndSwap(setupPending, setupAbandoned) {
		// The loop closes the socket and calls release when it runs Attached.
		return fmt.Errorf("iwarp: attach: %w", ctx.Err())
	}
	return <-c.setupc
}
