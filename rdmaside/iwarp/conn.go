package iwarp

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// A conn drives a qp from a socket of a loop.SocketLoop. It belongs to that
// loop, which calls its Stream methods; the ULP calls its fabric.Conn methods, on
// the loop too, from inside a callback of this connection or from anywhere else.
//
// Completions are never delivered from inside a fabric.Conn method. They wait for
// the end of the callback that is running, or for the Flush at the end of the
// loop's pass.
type conn struct {
	// Constant after newConn.
	p       *Provider
	loop    loop.Loop
	info    fabric.Info
	release func() // gives back the place in the limits; called once

	setupc chan error    // one deep: what Attached came to
	begun  atomic.Uint32 // setup* below; decides between Attached and a Dial that gave up

	// Owned by the loop.
	h          fabric.Handler
	qp         *qp
	sock       loop.Socket
	busy       bool // inside a Stream callback: its end does the work
	unwritten  int  // posts since the last write, while busy
	unanswered int  // Sends posted less messages received
	blocked    bool // Writable will be called
	finSent    bool
	gone       bool // Detached was called
	closed     bool // h.Closed was called, or never will be
	asked      bool // Close was called: what follows is no surprise
	reason     error

	last     time.Time // octets arrived
	stuck    time.Time // since when blocked without progress
	deadline time.Time // of closing; zero when not closing
	timer    *time.Timer
	kick     bool   // MPA initiator: the first FPDU may need a kick
	kicks    int    // how many kicks are still to come
	refresh  uint64 // stream position at which to ask for the MSS again
	ahead    [2 * (wire.CRCLen + wire.MaxHeaderLen)]byte
}

const (
	setupPending = iota
	setupRunning
	setupAbandoned
)

const (
	// directMin is the rest of a payload from which on reading straight to its
	// place beats copying it out of the loop's buffer.
	directMin = 16 << 10
	// directMax bounds what one callback reads itself, for the sake of the loop's
	// other sockets.
	directMax = 1 << 20
	// refreshMSS is how much is sent between two looks at the MSS.
	refreshMSS = 4 << 20

	// terminateWrite and terminateDrain bound how long a Terminate may take to be
	// written, and how long input is dropped behind it, so that no RST overtakes it.
	terminateWrite = time.Second
	terminateDrain = time.Second

	// A first FPDU that reaches Linux siw right behind its Reply can go unnoticed
	// until more octets come, so a zero-length Write follows it twice unless the
	// peer was heard in between. It needs no STag and no Receive and has no answer.
	firstKick  = 10 * time.Millisecond
	secondKick = 90 * time.Millisecond
)

var (
	_ fabric.Conn = (*conn)(nil)
	_ loop.Stream = (*stream)(nil)
)

// A stream is the conn as its socket sees it: both have a Flush.
type stream conn

// Attached implements loop.Stream.
func (s *stream) Attached(sock loop.Socket) {
	c := (*conn)(s)
	c.sock = sock
	if !c.begun.CompareAndSwap(setupPending, setupRunning) {
		c.closed = true
		c.qp.close(fabric.ErrClosed)
		sock.Abort()
		return
	}
	c.busy = true
	c.last = time.Now()
	c.setMSS()
	err := c.h.Setup(c)
	if err == nil && !c.qp.postable() {
		err = fabric.ErrClosed // Setup called Close
	}
	if err != nil {
		c.closed = true
		c.qp.close(err)
		c.qp.take()
		c.setupc <- err
		sock.Close()
		c.busy = false
		return
	}
	c.qp.start()
	c.timer = time.AfterFunc(c.period(), func() { c.loop.Post((*connTick)(c)) })
	c.busy = false
	c.setupc <- nil
	c.step()
}

// Received implements loop.Stream.
func (s *stream) Received(b []byte) {
	c := (*conn)(s)
	c.busy = true
	c.last = time.Now()
	c.input(b)
	c.readDirect()
	c.busy = false
	c.step()
}

// input feeds the qp. Completions are delivered at the end of the callback, for
// all of b together, unless the ULP must hear of them for b to go on.
func (c *conn) input(b []byte) {
	for b = c.qp.input(b); c.qp.hungry(); b = c.qp.input(b) {
		c.deliver()
	}
}

// readDirect reads the rest of a large payload to its place, then only as much as
// is needed to learn where the next one goes, and so on.
func (c *conn) readDirect() {
	for budget := directMax; budget > 0; {
		p := c.qp.sink()
		if len(p) < directMin {
			return
		}
		for len(p) > 0 {
			n, err := c.sock.Read(p)
			if n <= 0 || err != nil {
				return
			}
			c.qp.sunk(n)
			budget -= n
			p = p[n:]
		}
		n := c.qp.ahead()
		n, err := c.sock.Read(c.ahead[:min(n, len(c.ahead))])
		if n <= 0 || err != nil {
			return
		}
		c.input(c.ahead[:n])
	}
}

// Writable implements loop.Stream.
func (s *stream) Writable() {
	c := (*conn)(s)
	c.blocked = false
	c.step()
}

// Flush implements loop.Stream.
func (s *stream) Flush() { (*conn)(s).step() }

// step writes and delivers until there is nothing left to do. It is the end of
// every callback.
func (c *conn) step() {
	if c.busy || c.gone {
		return
	}
	c.busy = true
	// What is delivered leads to posts, and those to completions. A few rounds
	// belong to this pass; after that other connections have their turn.
	for range 4 {
		c.write()
		c.closing()
		if !c.deliver() {
			c.busy = false
			c.count()
			return
		}
	}
	c.busy = false
	c.count()
	if !c.gone {
		c.sock.FlushSoon()
	}
}

// count tells the Provider what was copied.
func (c *conn) count() {
	if n := c.qp.copied + c.qp.tx.copied; n > 0 {
		c.p.copied.Add(int64(n))
		c.qp.copied, c.qp.tx.copied = 0, 0
	}
}

// later asks for a step. A busy connection, one whose peer has Sends of ours to
// answer, lets all who are ready post before it writes: with many clients on a
// loop that is one write for all of them.
func (c *conn) later() {
	switch {
	case c.busy || c.gone || c.sock == nil:
	case c.unanswered >= busyFrom && c.unwritten < fullFrom:
		c.unwritten++
		c.sock.FlushLate()
	default:
		c.sock.FlushSoon()
	}
}

// busyFrom is how many Sends a connection must be ahead of what it received to
// be busy. Below it a wake-up costs more than writes that are saved.
//
// fullFrom is how many posts are worth a write of their own.
const (
	busyFrom = 4
	fullFrom = 16
)

// write hands the socket what the qp has for it.
func (c *conn) write() {
	for !c.blocked && !c.gone {
		c.unwritten = 0
		bufs := c.qp.output()
		if len(bufs) == 0 {
			return
		}
		want := 0
		for _, b := range bufs {
			want += len(b)
		}
		n, err := c.sock.Writev(bufs)
		c.qp.wrote(n)
		if err != nil {
			c.qp.abort(fmt.Errorf("iwarp: write: %w", err))
			return
		}
		if c.kick {
			c.kick, c.kicks = false, 2
			c.timer.Reset(firstKick)
		}
		if n < want {
			c.blocked = true
			c.stuck = time.Now()
			return
		}
		if c.qp.tx.written >= c.refresh {
			c.setMSS()
		}
	}
}

// setMSS fits FPDUs to what the path carries now.
func (c *conn) setMSS() {
	c.refresh = c.qp.tx.written + refreshMSS
	if c.p.opts.FPDU == FPDUMSS {
		c.qp.setMSS(c.sock.MSS())
	}
}

// closing does what the qp's state asks of the socket.
func (c *conn) closing() {
	if c.gone {
		return
	}
	q := c.qp
	if q.state == stateClosing && !q.fin && q.drained() {
		q.finish()
	}
	switch {
	case q.state == stateError:
		// The peer's Terminate, or the end of the socket. Close sends FIN behind what
		// was written; if that is stuck, RST.
		if !c.finSent {
			c.finSent = true
			if c.blocked {
				c.sock.Abort()
			} else {
				c.sock.Close()
			}
		}
	case q.state == stateTerminate && q.tx.termSent && q.tx.batch == nil && !c.finSent:
		// Closing now, with octets unread, would make the kernel send RST, and that
		// can overtake the Terminate.
		c.sendFIN(terminateDrain)
	case q.state == stateTerminate && c.deadline.IsZero():
		c.expire(terminateWrite)
	case q.state == stateClosing && q.fin && !c.finSent:
		c.sendFIN(c.p.opts.CloseTimeout)
	case q.state == stateClosing && c.deadline.IsZero():
		c.expire(c.p.opts.CloseTimeout)
	}
}

// sendFIN ends our direction; the peer's FIN, or the deadline in d, ends the rest.
func (c *conn) sendFIN(d time.Duration) {
	c.finSent = true
	if err := c.sock.CloseWrite(); err != nil {
		c.sock.Close()
		return
	}
	if c.qp.state == stateTerminate || c.deadline.IsZero() {
		c.expire(d)
	}
}

// expire sets the deadline of closing; without one the peer decides.
func (c *conn) expire(d time.Duration) {
	if d <= 0 {
		return
	}
	c.deadline = time.Now().Add(d)
	c.timer.Reset(d)
}

// deliver hands completions to the ULP, and Closed when nothing of the ULP's is
// touched any more. It reports whether it did anything.
func (c *conn) deliver() bool {
	if c.closed {
		c.qp.take()
		return false
	}
	cs := c.qp.take()
	if len(cs) > 0 {
		for i := range cs {
			if cs[i].Op == fabric.OpReceive {
				c.unanswered--
			}
		}
		c.h.Completed(cs)
		clear(cs)
		return true
	}
	// An orderly end waits for the peer's FIN: then what was posted has arrived.
	if c.qp.ended && (c.gone || c.qp.state != stateClosing) {
		c.end()
		return true
	}
	return false
}

// end tells the ULP that the connection is over.
func (c *conn) end() {
	c.closed = true
	err := c.qp.err
	if c.asked {
		err = c.reason
	} else {
		c.p.logEnd(c, err)
	}
	c.h.Closed(err)
}

// Detached implements loop.Stream.
func (s *stream) Detached(err error) {
	c := (*conn)(s)
	inside := c.qp.rx.inside()
	switch {
	case errors.Is(err, io.EOF) && inside:
		err = fmt.Errorf("iwarp: peer closed inside an FPDU: %w", io.ErrUnexpectedEOF)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("iwarp: peer closed: %w", io.EOF)
	case err != nil:
		err = fmt.Errorf("iwarp: connection: %w", err)
	default:
		err = fabric.ErrClosed
	}
	c.gone = true
	c.qp.abort(err)
	if c.timer != nil {
		c.timer.Stop()
	}
	for c.deliver() {
	}
	c.h = nil
	c.release()
}

// connTick is the timer's task.
type connTick conn

func (t *connTick) Run() { (*conn)(t).tick() }

// period is how often a connection is looked at.
func (c *conn) period() time.Duration {
	most := 5 * time.Second
	if c.p.opts.SilentTimeout > 0 {
		most = silentLook
	}
	d := c.p.opts.ProgressTimeout / 4
	if d <= 0 {
		d = time.Hour
		if c.p.opts.SilentTimeout <= 0 {
			return d
		}
	}
	return min(max(d, 10*time.Millisecond), most)
}

// silentLook is how often a connection with a SilentTimeout is looked at.
const silentLook = 500 * time.Millisecond

func (c *conn) tick() {
	if c.gone {
		return
	}
	now := time.Now()
	next := c.period()
	switch {
	case !c.deadline.IsZero():
		if left := c.deadline.Sub(now); left > 0 {
			next = left
			break
		}
		// Whatever is still open is not worth more waiting.
		if c.qp.state == stateClosing && !c.qp.fin {
			c.qp.end(stateError, ErrCloseTimeout)
			c.reason = ErrCloseTimeout
		}
		c.sock.Abort()
		c.finSent = true
	case c.silent():
		c.qp.abort(errSilent)
		c.sock.Abort()
		c.finSent = true
	case c.stalled(now):
		c.qp.abort(ErrStalled)
		c.sock.Abort()
		c.finSent = true
	case c.kicks > 0:
		if c.qp.rx.heard {
			c.kicks = 0
			break
		}
		c.qp.tx.kick = true
		if c.kicks--; c.kicks > 0 {
			next = secondKick
		}
	}
	c.timer.Reset(next)
	c.step()
}

// silent reports whether the peer's host seems to be gone.
func (c *conn) silent() bool {
	most := c.p.opts.SilentTimeout
	if most <= 0 {
		return false
	}
	s, ok := c.sock.(loop.WatchedSocket)
	if !ok {
		return false
	}
	// Keepalive has asked after a quarter, and looks come late.
	return s.Silent() >= most/8*5 && c.qp.alive()
}

// stalled reports whether the peer keeps an FPDU waiting, in either direction.
func (c *conn) stalled(now time.Time) bool {
	most := c.p.opts.ProgressTimeout
	if most <= 0 || !c.qp.alive() {
		return false
	}
	return c.qp.rx.inside() && now.Sub(c.last) >= most || c.blocked && now.Sub(c.stuck) >= most
}

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

// Invalidate implements fabric.Conn. It is always done when it returns.
func (c *conn) Invalidate(_ uint64, h fabric.Handle) (bool, error) {
	c.qp.invalidate(uint32(h))
	return true, nil
}

// Info implements fabric.Conn.
func (c *conn) Info() fabric.Info { return c.info }

// LastActivity implements fabric.Conn.
func (c *conn) LastActivity() time.Time { return c.last }

// Close implements fabric.Conn.
func (c *conn) Close(err error) {
	if c.closed || c.gone {
		return
	}
	if !c.asked {
		c.asked, c.reason = true, err
	}
	c.qp.close(err)
	if err != nil && c.qp.state == stateClosing && c.sock != nil {
		c.sock.Abort() // the second Close is out of patience
	}
	c.later()
}
