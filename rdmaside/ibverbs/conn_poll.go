//go:build ibverbs

package ibverbs

import (
	"fmt"
	"io"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// connPoll is the task that polls. It is posted by the goroutine of the domain, and by the loop.
type connPoll conn

func (t *connPoll) Run() {
	c := (*conn)(t)
	c.scheduled.Store(false)
	c.poll()
}

// wake makes the loop poll. It may be called on any goroutine.
func (c *conn) wake() {
	if !c.scheduled.Swap(true) {
		c.loop.Post((*connPoll)(c))
	}
}

// passBatches bounds the batches that one pass handles, so that other connections have their turn.
const passBatches = 4

// poll delivers completions until there are none, and then asks for an event at the next.
func (c *conn) poll() {
	if c.state == stateGone || c.h == nil {
		return
	}
	c.polling = true
	armed := false
	for range passBatches {
		n := c.take()
		c.deliver()
		if c.state == stateGone {
			return
		}
		c.flush()
		switch {
		case n > 0:
			armed = false
		case armed:
			// What came between the last poll and arming would cause no event.
			c.polling = false
			c.settle()
			return
		case c.busy():
			c.polling = false
			c.wake()
			c.settle()
			return
		default:
			armed = true
			if err := armCQ(c.cq); err != nil {
				c.fail(fmt.Errorf("ibverbs: arm the completion queue: %w", err))
			}
		}
	}
	c.polling = false
	c.wake()
	c.settle()
}

// busy says whether to poll again in the next pass of the loop, rather than to sleep until an event.
func (c *conn) busy() bool {
	d := c.p.opts.BusyPoll
	return d > 0 && c.state <= stateOpen && time.Since(c.stirred) < d
}

// stir begins the time of busy polling.
func (c *conn) stir() {
	if c.p.opts.BusyPoll > 0 {
		c.stirred = time.Now()
		if !c.polling {
			c.wake()
		}
	}
}

// take fetches one batch of completions into c.batch, and returns how many the device had.
func (c *conn) take() int {
	n, err := pollCQ(c.cq, c.wcs, c.d.quirks.InvalidatedBit)
	if err != nil {
		c.fail(fmt.Errorf("ibverbs: poll the completion queue: %w", err))
		return 0
	}
	if n > 0 {
		c.last = time.Now()
		c.stirred = c.last
	}
	for i := range c.wcs[:n] {
		w := &c.wcs[i]
		switch {
		case w.status != 0:
			c.failed(w)
		case w.id&receiveBit != 0:
			c.received(w)
		default:
			c.sent(w)
		}
	}
	c.completeIdle()
	return n
}

// received completes the oldest Receive. Receives complete in order.
func (c *conn) received(w *workCompletion) {
	if c.recvGiven == 0 || w.id != (c.recvDone+1)|receiveBit {
		c.fail(fmt.Errorf("ibverbs: device %s completed a Receive that was not posted, or not in its turn", c.d.dev.name))
		return
	}
	if r := c.receives.at(0); int64(w.bytes) > int64(len(r.buf)) {
		c.fail(fmt.Errorf("ibverbs: device %s completed a Receive of %d octets in %d", c.d.dev.name, w.bytes, len(r.buf)))
		return
	}
	if c.state == stateStarting {
		c.open() // the peer sends, so it has established the connection
	}
	r := c.receives.at(0)
	done := fabric.Completion{ID: r.id, Op: fabric.OpReceive, Bytes: int32(w.bytes)}
	if w.hasInvalidated != 0 {
		done.Invalidated = fabric.Handle(w.invalidated)
		// Where the handle's own invalidation is posted too, it fails and ends the connection.
		if x, ok := c.handles[done.Invalidated]; ok && !x.dying {
			c.forget(done.Invalidated)
		}
	}
	if r.mr != 0 {
		_ = deregisterMR(r.mr)
	}
	*r = receiveWork{}
	c.receives.pop()
	c.recvDone++
	c.recvGiven--
	c.batch = append(c.batch, done)
}

// sent completes the work whose Work Requests are complete, now that one more is.
func (c *conn) sent(w *workCompletion) {
	if w.id > c.given || w.id <= c.done {
		c.fail(fmt.Errorf("ibverbs: device %s completed a Work Request that was not posted", c.d.dev.name))
		return
	}
	c.doneSend = max(c.doneSend, w.id)
	if !c.d.quirks.LateReads || w.opcode == opcodeRead {
		c.doneRead = max(c.doneRead, w.id)
	}
	for c.sends.n > 0 {
		w := c.sends.at(0)
		done := c.doneSend
		if w.op == fabric.OpRead {
			done = c.doneRead
		}
		c.done = max(c.done, min(done, w.last))
		if w.last > done {
			break
		}
		w.release()
		switch w.op {
		case bindWork:
		case fabric.OpInvalidate:
			c.forget(w.handle)
			c.invalidateN--
			c.batch = append(c.batch, fabric.Completion{ID: w.id, Op: w.op})
		default:
			c.sendN--
			if w.id != 0 {
				c.batch = append(c.batch, fabric.Completion{ID: w.id, Op: w.op})
			}
		}
		c.sends.pop()
	}
}

// completeIdle completes the idle work whose turn has come. None completes behind a Work Request that
// failed: the end of the connection flushes it.
func (c *conn) completeIdle() {
	if c.sendFailed {
		return
	}
	k := 0
	for _, w := range c.idle {
		if w.after > c.done {
			break
		}
		if w.id != 0 {
			c.batch = append(c.batch, fabric.Completion{ID: w.id, Op: w.op})
		}
		c.sendN--
		k++
	}
	if k > 0 {
		c.idle = c.idle[:copy(c.idle, c.idle[k:])]
	}
}

// failed handles a Work Request that failed or was flushed. Its work stays in its queue; the end of
// the connection flushes it.
func (c *conn) failed(w *workCompletion) {
	if w.id&receiveBit != 0 {
		c.recvFlushed++
	} else if w.id > c.done && w.id <= c.given {
		c.completeIdle()
		c.done, c.sendFailed = w.id, true
	}
	switch {
	case c.state >= stateEnding:
	case w.status == statusFlushed:
		c.fail(errGone)
	default:
		err := &workError{int(w.status), w.vendor}
		if w.id&receiveBit == 0 {
			c.failedWindow(w.id, err)
		}
		c.fail(err)
	}
}

// deliver calls the ULP with what take has collected.
func (c *conn) deliver() {
	if len(c.batch) == 0 {
		return
	}
	b := c.batch
	c.batch = nil
	c.h.Completed(b)
	clear(b)
	c.batch = b[:0]
}

// settle does what waits for work to complete.
func (c *conn) settle() {
	if c.state == stateClosing && c.sendN == 0 && c.invalidateN == 0 {
		c.end(nil)
	}
	if c.state == stateEnding && !c.drained && c.recvFlushed >= c.recvGiven && c.done >= c.given {
		c.drained = true
		close(c.drainedc)
	}
}

// open begins full operation.
func (c *conn) open() {
	if c.state != stateStarting {
		return
	}
	c.state = stateOpen
	c.stopTimer()
	c.later()
}

// connOpen is the task of the event that the connection is established.
type connOpen conn

func (t *connOpen) Run() { (*conn)(t).open() }

// connPeerClosed is the task of the event that the peer has disconnected.
type connPeerClosed conn

func (t *connPeerClosed) Run() {
	c := (*conn)(t)
	c.poll() // what came before it
	if c.reason == errGone {
		c.reason = io.EOF // which is why the work was flushed
	}
	c.fail(io.EOF)
}

// connRemoved is the task of the event that the device is removed.
type connRemoved conn

func (t *connRemoved) Run() {
	c := (*conn)(t)
	if c.reason == errGone {
		c.reason = errRemoved // which is why the work was flushed
	}
	c.fail(errRemoved)
}
