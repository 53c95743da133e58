package fabrictest

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// endState is the state of one end of a link.
type endState uint8

const (
	fresh   endState = iota // Setup has not been called; setting or gone follows
	setting                 // Setup runs, Receives may be posted; open, ending or gone follows
	open                    // ending follows when either side closes or work fails
	ending                  // no work can be posted; the loop will flush and call Closed
	gone                    // Closed was called, or Setup will not be called
)

type region struct {
	buf    []byte
	offset uint64
	access fabric.Access
	dying  bool // Invalidate was called and its Completion is due

	written []span // octets that the peer has written
}

// A span is the octets [from, to) of a region.
type span struct{ from, to int }

// placed returns how many octets from the first on the peer has written.
func (r *region) placed() (n int) {
	for grown := true; grown; {
		grown = false
		for _, s := range r.written {
			if s.from <= n && s.to > n {
				n, grown = s.to, true
			}
		}
	}
	return n
}

type receive struct {
	id  uint64
	buf []byte
}

// work is a posted Send, Write, Read or Invalidate.
type work struct {
	id         uint64
	op         fabric.Op
	parts      [][]byte
	into       []byte
	at         fabric.Region
	invalidate fabric.Handle
	copied     bool // by SendCopy
}

// A loopbackConn is one end of a loopback connection. It is a fabric.Conn, and the task
// that its loop runs.
type loopbackConn struct {
	// Constant, except loop and h, which setup sets.
	link   *link
	peer   *loopbackConn
	opts   fabric.ConnOptions
	info   fabric.Info
	dialed bool
	loop   loop.Loop
	h      fabric.Handler

	// Guarded by link.mu.
	state     endState
	closing   bool  // Close was called here
	reason    error // the argument of Closed
	due       bool  // Run has something to do
	scheduled bool  // Run is posted to the loop
	held      bool  // completions wait for HoldCompletions(false)

	work     queue[work]    // posted and not carried out
	receives queue[receive] // posted and not used
	regions  map[fabric.Handle]region
	graves   map[fabric.Handle]region // those that were live when the link died
	posted   int                      // Sends, Writes, Reads whose completion the handler has not got
	events   []fabric.Completion
	counts   Counts
	copies   int  // calls of SendCopy
	copied   bool // one of them has promised a call of the handler
	active   time.Time

	batch []fabric.Completion // owned by the loop
}

// setup hands c to its loop and waits for h.Setup.
func (c *loopbackConn) setup(ctx context.Context, on loop.Loop, h fabric.Handler) error {
	result := make(chan error, 1)
	c.link.mu.Lock()
	c.loop, c.h = on, h
	c.link.mu.Unlock()
	on.Post(loop.TaskFunc(func() { result <- c.begin() }))
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	c.link.mu.Lock()
	if c.state == fresh {
		c.state = gone
	}
	started := c.state != gone
	c.link.mu.Unlock()
	if started {
		return <-result
	}
	c.link.end(ctx.Err(), nil)
	return ctx.Err()
}

// begin runs Setup on the loop.
func (c *loopbackConn) begin() error {
	k := c.link
	k.mu.Lock()
	if c.state != fresh {
		k.mu.Unlock()
		return fabric.ErrClosed
	}
	if k.dead {
		c.state = gone
		k.mu.Unlock()
		return fmt.Errorf("fabrictest: dial: %w", c.reason)
	}
	c.state = setting
	k.mu.Unlock()

	err := c.h.Setup(c)

	k.mu.Lock()
	switch {
	case err != nil:
		c.state = gone
		k.die(err, nil)
	case k.dead:
		c.state = ending
		c.due = true
	default:
		c.state = open
		// Run carries out the work that was posted during Setup, and the work of the
		// peer that waited for Setup.
		c.due = true
		c.peer.due = c.peer.state == open
	}
	wake := k.wakes()
	k.mu.Unlock()
	wake.post()
	return err
}

// Run carries out posted work and calls the handler. It is the loop's task.
func (c *loopbackConn) Run() {
	k := c.link
	k.mu.Lock()
	c.scheduled, c.due = false, false
	if c.state == open {
		c.carryOut()
	}
	closed := c.state == ending
	if closed {
		c.flush()
		c.state = gone
	}
	var batch []fabric.Completion
	calls := c.copied && !closed
	c.copied = false
	if !c.held || closed {
		// Two arrays take turns, because the handler borrows one while completions are
		// appended to the other.
		batch, c.events, c.batch = c.events, c.batch[:0], nil
		for i := range batch {
			switch batch[i].Op {
			case fabric.OpSend, fabric.OpWrite, fabric.OpRead:
				c.posted--
			}
		}
	}
	wake := k.wakes()
	k.mu.Unlock()
	wake.post()

	if len(batch) > 0 || calls {
		c.h.Completed(batch)
		for i := range batch {
			for at := range batch[i].Data {
				batch[i].Data[at] = 0xdb // whoever reads them now finds nothing useful
			}
		}
		clear(batch)
	}
	c.batch = batch[:0]
	if closed {
		c.h.Closed(c.reason)
	}
}

// flush completes all posted work with ErrFlushed.
func (c *loopbackConn) flush() {
	err := fabric.ErrFlushed
	if c.reason != nil {
		err = fmt.Errorf("%w: %w", fabric.ErrFlushed, c.reason)
	}
	for c.work.len() > 0 {
		c.done(c.work.first(), err)
		c.work.drop()
	}
	for c.receives.len() > 0 {
		c.events = append(c.events, fabric.Completion{ID: c.receives.first().id, Op: fabric.OpReceive, Err: err})
		c.receives.drop()
	}
}

// carryOut carries out posted work, in order, until it is done, held or failed. The caller
// holds link.mu.
func (c *loopbackConn) carryOut() {
	for c.work.len() > 0 && c.peer.state >= open && !c.link.dead {
		w := c.work.first()
		if !c.do(w) {
			return
		}
		c.work.drop()
	}
}

// done completes w. Silent work that succeeded gets no Completion, and copied work never does.
func (c *loopbackConn) done(w *work, err error) {
	switch {
	case w.copied:
		return
	case w.id == 0 && err == nil && w.op != fabric.OpInvalidate:
		c.posted--
		return
	}
	c.events = append(c.events, fabric.Completion{ID: w.id, Op: w.op, Err: err})
	c.due = true
}

// do carries out w. It reports false when w has to wait. After a failure the link is
// dead.
func (c *loopbackConn) do(w *work) bool {
	if w.op == fabric.OpInvalidate {
		delete(c.regions, w.at.Handle)
		c.done(w, nil)
		return true
	}
	parts, verdict := c.inject(w)
	switch verdict {
	case Hold:
		return false
	case Drop:
		c.done(w, nil)
		return true
	case Fail:
		c.done(w, ErrInjected)
		c.link.fail(ErrInjected)
		return true
	case Cut:
		if w.op == fabric.OpWrite {
			if dst, err := c.peer.reach(w.at, length(parts), fabric.RemoteWrite); err == nil {
				gather(dst[:len(dst)/2], parts)
				c.peer.wrote(w.at, len(dst)/2)
			}
		}
		c.done(w, ErrInjected)
		c.link.fail(ErrInjected)
		return true
	}
	err := c.transfer(w, parts)
	now := time.Now()
	c.peer.active = now
	if w.op == fabric.OpRead {
		c.active = now
	}
	c.done(w, err)
	if err != nil {
		c.link.fail(err)
	}
	return true
}

// transfer moves the octets of w, which are parts unless it is a Read.
func (c *loopbackConn) transfer(w *work, parts [][]byte) (err error) {
	peer := c.peer
	switch w.op {
	case fabric.OpSend:
		err = peer.deliver(w, parts)
		c.counts.Sends++
	case fabric.OpWrite:
		var dst []byte
		if dst, err = peer.reach(w.at, length(parts), fabric.RemoteWrite); err == nil {
			gather(dst, parts)
			peer.wrote(w.at, len(dst))
		}
		c.counts.Writes++
	case fabric.OpRead:
		var src []byte
		if src, err = peer.reach(w.at, int(w.at.Length), fabric.RemoteRead); err == nil {
			copy(w.into, src)
		}
		c.counts.Reads++
	}
	return err
}

// inPlaceMost is the length of the longest message that is left outside of its Receive's buffer.
const inPlaceMost = 4096

// deliver puts a message into the next Receive of c.
func (c *loopbackConn) deliver(w *work, parts [][]byte) error {
	c.counts.LowReceives = min(c.counts.LowReceives, c.receives.len())
	if c.receives.len() == 0 {
		return ErrNoReceive
	}
	n := length(parts)
	r := c.receives.first()
	if n > len(r.buf) {
		copy(r.buf, bytes.Join(parts, nil))
		c.events = append(c.events, fabric.Completion{
			ID: r.id, Op: fabric.OpReceive, Bytes: int32(len(r.buf)), Err: fmt.Errorf("%w: %w", fabric.ErrFlushed, fabric.ErrTooLong),
		})
		c.receives.drop()
		c.due = true
		return ErrTooLong
	}
	placed := 0
	if w.invalidate != 0 {
		g, ok := c.regions[w.invalidate]
		if !ok {
			return errInvalidate
		}
		placed = g.placed()
		delete(c.regions, w.invalidate)
	}
	done := fabric.Completion{ID: r.id, Op: fabric.OpReceive, Bytes: int32(n), Invalidated: w.invalidate, Placed: uint32(placed)}
	if c.opts.InPlace && n <= inPlaceMost && c.counts.Received%2 == 0 { // half of those that may be
		done.Data = make([]byte, n)
		gather(done.Data, parts)
	} else {
		gather(r.buf[:n], parts)
	}
	c.events = append(c.events, done)
	c.receives.drop()
	c.counts.Received++
	c.due = true
	return nil
}

// reach finds n octets of c's memory for the peer. With n = 0 it accepts any handle.
func (c *loopbackConn) reach(at fabric.Region, n int, a fabric.Access) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	r, ok := c.regions[at.Handle]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: unknown handle", errAccess)
	case r.access&a == 0:
		return nil, &fabric.AccessError{Handle: at.Handle, Err: fmt.Errorf("%w: rights", errAccess)}
	}
	// The bounds are exact to the octet, and no sum can wrap.
	first := at.Offset - r.offset
	if at.Offset < r.offset || first > uint64(len(r.buf)) || uint64(n) > uint64(len(r.buf))-first {
		return nil, &fabric.AccessError{Handle: at.Handle, Err: fmt.Errorf("%w: bounds", errAccess)}
	}
	return r.buf[first:][:n], nil
}

// wrote records that the peer has written n octets at at, which reach has found.
func (c *loopbackConn) wrote(at fabric.Region, n int) {
	if n == 0 {
		return
	}
	r := c.regions[at.Handle]
	from := int(at.Offset - r.offset)
	if k := len(r.written) - 1; k >= 0 && r.written[k].to == from {
		r.written[k].to += n
	} else {
		r.written = append(r.written, span{from, from + n})
	}
	c.regions[at.Handle] = r
}
