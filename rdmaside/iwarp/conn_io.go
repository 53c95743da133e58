package iwarp

import (
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

const (
	// directMin is the shortest rest of a payload for which reading straight to the
	// destination is cheaper than copying out of the loop's buffer.
	directMin = 16 << 10
	// directMax bounds the octets that one callback reads itself, so that the loop serves its
	// other sockets too.
	directMax = 1 << 20
	// refreshMSS is how many octets are sent before the MSS is asked for again.
	refreshMSS = 4 << 20

	// terminateWrite bounds how long writing a Terminate may take.
	terminateWrite = time.Second
	// terminateDrain bounds how long input is read and dropped after a Terminate was
	// written, so that no RST overtakes it.
	terminateDrain = time.Second

	// Linux siw may not notice a first FPDU that reaches it right behind its own Reply
	// until more octets come. So the Initiator sends a zero-length Write twice, unless
	// the peer was heard in between: a kick. It needs no STag and no Receive, and has no
	// answer.
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
	// What the ULP posts at the end of this pass, because of what it is told now, is written
	// first: the peer can work on it while the loop writes to its other sockets.
	c.sock.FlushSoon()
	c.busy = true
	c.last = time.Now()
	c.qp.rx.lends = c.qp.cfg.inPlace
	c.input(b)
	if c.qp.rx.lends {
		if c.qp.rx.lends = false; len(c.qp.cs) > 0 || c.qp.took > 0 {
			c.deliver() // b soon has other octets
		}
	}
	c.readDirect()
	c.busy = false
	c.step()
}

// input passes b to the qp. Completions are delivered at the end of the callback, for
// all of b together, unless the qp needs the ULP to post a Receive before it can go on.
func (c *conn) input(b []byte) {
	for b = c.qp.input(b); c.qp.hungry(); b = c.qp.input(b) {
		c.deliver()
	}
}

// readDirect reads the rest of a large payload to its destination, then only the
// octets that tell the destination of the next payload, and so on.
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

// step writes and delivers until there is nothing left to do. Every callback ends with
// it.
func (c *conn) step() {
	if c.busy || c.gone {
		return
	}
	c.busy = true
	// The ULP posts when it gets completions, and posts lead to completions. After a
	// few rounds other connections have their turn.
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

// count adds the octets that were copied to the Provider's counter.
func (c *conn) count() {
	if n := c.qp.copied + c.qp.tx.copied; n > 0 {
		c.p.copied.Add(int64(n))
		c.qp.copied, c.qp.tx.copied = 0, 0
	}
}

// later asks the loop for a step. If the peer still has several Sends to answer, the connection
// asks for a step after all other sockets that are ready. With many clients on the loop, all
// clients have then posted, and one write carries all their posts.
func (c *conn) later() {
	switch {
	case c.busy || c.gone || c.sock == nil:
	case c.unanswered >= aheadFrom && c.unwritten < fullFrom:
		c.unwritten++
		c.sock.FlushLate()
	default:
		c.sock.FlushSoon()
	}
}

const (
	// aheadFrom is how many Sends more than messages received make a connection ahead.
	// With fewer a wake-up costs more than the writes that it saves.
	aheadFrom = 4
	// fullFrom is how many posts are worth a write of their own.
	fullFrom = 16
)

// write writes the qp's output to the socket until the socket is full.
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

// setMSS fits FPDUs to the segment size that TCP uses now.
func (c *conn) setMSS() {
	c.refresh = c.qp.tx.written + refreshMSS
	if c.p.opts.FPDU == FPDUMSS {
		c.qp.setMSS(c.sock.MSS())
	}
}
