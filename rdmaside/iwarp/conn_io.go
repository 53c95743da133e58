package iwarp

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
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
