package tcpframe

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// A Releaser is told when what was lent comes back.
type Releaser interface{ Release() }

// A RecordHandler owns a Conn. All methods run on the Conn's loop.
type RecordHandler interface {
	// Opened is the first call.
	Opened(c *Conn)
	// Record takes b. The record is b.Bytes()[ConnOptions.Prefix:].
	Record(c *Conn, b Buffer)
	// Drained is called when the queue of a Conn that had passed MaxOutbound has
	// fallen below a quarter of it.
	Drained(c *Conn)
	// Closed is the last call, after every Releaser of the Conn was released.
	// err is io.EOF after the peer's FIN, io.ErrUnexpectedEOF when that came
	// inside a record, a *RecordError for what was refused here, what Close or
	// Abort was given, and the socket's error otherwise.
	Closed(c *Conn, err error)
}

// An Engine runs event loops.
type Engine struct{}

// Start starts the loops.
func Start(o EngineOptions) (*Engine, error) { return nil, ErrClosed }

// Loops returns the loops; not to be changed.
func (e *Engine) Loops() []*Loop { return nil }

// Stop ends all connections with ErrStopped and the loops after them.
func (e *Engine) Stop() {}

// Listen starts a Listener. h is called on the accept goroutine for every
// connection that was let in, before Opened, and returns its owner.
func (e *Engine) Listen(o ListenOptions, h func(*Conn) RecordHandler) (*Listener, error) {
	return nil, ErrClosed
}

// Dial connects to addr, on loop, or the least loaded loop if that is nil. It
// returns after h.Opened. It must not be called on a loop.
func (e *Engine) Dial(ctx context.Context, addr string, loop *Loop, o DialOptions, h RecordHandler) (*Conn, error) {
	return nil, ErrClosed
}

// A Loop is an event loop.
type Loop struct{}

// Post queues t to run on the loop.
func (l *Loop) Post(t Task) {}

// Attach gives the loop the socket of c.
func (l *Loop) Attach(c net.Conn, s Stream) error { return ErrClosed }

// Index is the loop's place in Engine.Loops.
func (l *Loop) Index() int { return 0 }

// Conns is how many connections the loop has. Any goroutine.
func (l *Loop) Conns() int { return 0 }

// A Listener accepts connections.
type Listener struct{}

// Addr is where it listens.
func (l *Listener) Addr() netip.AddrPort { return netip.AddrPort{} }

// Update replaces limits, allow list and ConnOptions for connections to come.
func (l *Listener) Update(o ListenOptions) {}

// Close stops accepting; connections stay.
func (l *Listener) Close() error { return nil }

// A Conn is a record-marked connection.
type Conn struct{}

// Send queues the record made of parts (at most 6) and returns. The octets are
// taken until done.Release is called, on the loop, once the kernel took them or
// the connection ended, which may be before Send returns. The slice of slices
// is borrowed. done may be nil.
func (c *Conn) Send(parts [][]byte, done Releaser) {}

// Pause stops reading until as many calls of Resume. No record is delivered
// after the one that is being delivered now.
func (c *Conn) Pause() {}

// Resume undoes one Pause.
func (c *Conn) Resume() {}

// Close stops reading, writes what is queued, and ends the connection.
func (c *Conn) Close(err error) {}

// Abort ends the connection with RST.
func (c *Conn) Abort(err error) {}

// Loop is the Conn's loop.
func (c *Conn) Loop() *Loop { return nil }

// RemoteAddr is the peer.
func (c *Conn) RemoteAddr() netip.AddrPort { return netip.AddrPort{} }

// LocalAddr is this end.
func (c *Conn) LocalAddr() netip.AddrPort { return netip.AddrPort{} }

// Outbound is how many octets wait for the peer.
func (c *Conn) Outbound() int64 { return 0 }

// LastActivity is when an octet last came or went, to within EngineOptions.Tick.
func (c *Conn) LastActivity() time.Time { return time.Time{} }
