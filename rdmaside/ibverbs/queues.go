//go:build ibverbs

package ibverbs

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// queues has the work of a conn: what the ULP has posted and has no Completion yet, and the arrays
// of Work Requests that the device has not got yet.
//
// Work is numbered by Work Request. The device completes them in order, so the completion of one
// is that of all before it; with siw, the completion of a Read is that of all before it, and another
// completion is that of all before it but the Reads. Only some ask for a completion: each invalidation, the
// last of each Send, Write or Read that the ULP has named, and enough others to know when the device's
// queue has room.
type queues struct {
	c *conn

	sends queue[sendWork]
	sendN int // Sends, Writes and Reads posted: those of sends and idle

	invalidateN int // invalidations posted

	made     uint64
	given    uint64 // Work Requests that the device has got
	done     uint64 // Work Requests that the device has completed
	doneRead uint64 // the last Read that the device has completed
	doneSend uint64 // the last Work Request of which the device has completed all before but, with siw, Reads
	named    uint64 // the last Work Request of named work
	quiet    int    // Work Requests made since the last that asks for a completion
	wrs      []workRequest
	at       int // wrs[at:] are for the device
	els      []element
	idle     []idleWork // work without a Work Request
	poster   poster

	sendFailed bool // a Work Request of sends has failed, or was flushed

	receives    queue[receiveWork]
	recvMade    uint64
	recvDone    uint64 // Receives that the device has completed
	recvIDs     []uint64
	recvEls     []element
	recvGiven   int // Receives that the device has and has not completed
	recvFlushed int // of these, those that it has flushed
}

// A sendWork is a posted Send, Write, Read, bind or invalidation.
type sendWork struct {
	id     uint64
	op     fabric.Op
	last   uint64        // its last Work Request
	keep   [][]byte      // the octets, which the device uses
	mrs    []uint64      // registrations for this work alone
	handle fabric.Handle // what an invalidation invalidates
}

// A receiveWork is a posted Receive.
type receiveWork struct {
	id  uint64
	buf []byte
	mr  uint64
}

// An idleWork is work that the device does not get. It is a Write or Read of no octets, because devices
// check its handle, and RFC 5040 Section 5.3 says that nobody does; it completes when the named work
// before it has. Or it is one more invalidation of a window, and completes with the first.
type idleWork struct {
	id    uint64
	op    fabric.Op
	after uint64
}

// receiveBit marks the number of a Receive in a completion.
const receiveBit = 1 << 63

func (q *queues) init(c *conn) { q.c = c }

// PostReceive implements fabric.Conn.
func (c *conn) PostReceive(id uint64, buf []byte) error {
	if err := c.postable(); err != nil {
		return err
	}
	if c.receives.n >= c.opts.Receives {
		return fabric.ErrQueueFull
	}
	el, mr, err := c.d.element(buf)
	if err != nil {
		return err
	}
	*c.receives.push() = receiveWork{id, buf, mr}
	c.recvMade++
	c.recvIDs = append(c.recvIDs, c.recvMade|receiveBit)
	c.recvEls = append(c.recvEls, el)
	c.later()
	return nil
}

// begin adds work of kind op. finish or abandon must follow.
func (q *queues) begin(id uint64, op fabric.Op) (*sendWork, error) {
	if err := q.c.postable(); err != nil {
		return nil, err
	}
	if q.sendN >= q.c.opts.Sends {
		return nil, fabric.ErrQueueFull
	}
	return q.push(id, op), nil
}

// push adds work of kind op, whatever there is already. finish or abandon must follow.
func (q *queues) push(id uint64, op fabric.Op) *sendWork {
	w := q.sends.push()
	w.id, w.op, w.keep, w.mrs = id, op, w.keep[:0], w.mrs[:0]
	return w
}

// abandon takes back the work that begin added last, and the Work Requests from mark on.
func (q *queues) abandon(w *sendWork, mark, els int) {
	w.release()
	q.sends.undo()
	q.wrs, q.els = q.wrs[:mark], q.els[:els]
}

// finish numbers the Work Requests from mark on, which are those of w.
func (q *queues) finish(w *sendWork, mark int) {
	for i := mark; i < len(q.wrs); i++ {
		r := &q.wrs[i]
		q.made++
		q.quiet++
		r.id = q.made
		if w.id != 0 && i == len(q.wrs)-1 || r.op == opRead && q.c.d.quirks.LateReads || q.quiet >= max(q.c.depth/4, 1) {
			r.flags |= flagSignaled
			q.quiet = 0
		}
	}
	w.last = q.made
	if w.id != 0 {
		q.named = q.made
	}
	switch w.op {
	case bindWork:
	case fabric.OpInvalidate:
		q.invalidateN++
	default:
		q.sendN++
	}
	q.c.later()
}

// element appends an element for b, which belongs to w.
func (q *queues) element(w *sendWork, b []byte) error {
	el, mr, err := q.c.d.element(b)
	if err != nil {
		return err
	}
	if mr != 0 {
		w.mrs = append(w.mrs, mr)
	}
	w.keep = append(w.keep, b)
	q.els = append(q.els, el)
	return nil
}

// postIdle posts a Write or Read of no octets.
func (q *queues) postIdle(id uint64, op fabric.Op) error {
	if err := q.c.postable(); err != nil {
		return err
	}
	if q.sendN >= q.c.opts.Sends {
		return fabric.ErrQueueFull
	}
	q.sendN++
	q.idle = append(q.idle, idleWork{id, op, q.named})
	q.c.wake()
	return nil
}

// PostSend implements fabric.Conn.
func (c *conn) PostSend(id uint64, s fabric.Send) error {
	total, parts := 0, 0
	for _, p := range s.Parts {
		total += len(p)
		if len(p) > 0 {
			parts++
		}
	}
	if parts > c.info.MaxParts || total > c.info.MaxMessage {
		return fmt.Errorf("ibverbs: Send of %d parts and %d octets: at most %d and %d", parts, total, c.info.MaxParts, c.info.MaxMessage)
	}
	w, err := c.begin(id, fabric.OpSend)
	if err != nil {
		return err
	}
	mark, els := len(c.wrs), len(c.els)
	r := workRequest{op: opSend, first: uint32(els), rkey: uint32(s.Invalidate)}
	if s.Invalidate != 0 {
		r.op = opSendInvalidate
	}
	inline := total > 0 && total <= c.maxInline && (s.Invalidate == 0 || !c.d.quirks.NoInlineInvalidate)
	if inline {
		r.flags = flagInline
	}
	for _, p := range s.Parts {
		switch {
		case len(p) == 0:
			continue
		case inline: // the device reads it when it gets the Work Request, and needs no key
			w.keep = append(w.keep, p)
			c.els = append(c.els, element{addr: address(p), len: uint32(len(p))})
		default:
			if err := c.element(w, p); err != nil {
				c.abandon(w, mark, els)
				return err
			}
		}
		r.count++
	}
	c.wrs = append(c.wrs, r)
	c.finish(w, mark)
	return nil
}

// PostWrite implements fabric.Conn. A Write with more parts, or more octets, than the device takes
// at once becomes several Work Requests.
func (c *conn) PostWrite(id uint64, wr fabric.Write) error {
	total := 0
	for _, p := range wr.Parts {
		total += len(p)
	}
	if total == 0 {
		return c.postIdle(id, fabric.OpWrite)
	}
	w, err := c.begin(id, fabric.OpWrite)
	if err != nil {
		return err
	}
	mark, els := len(c.wrs), len(c.els)
	to, room := wr.To.Offset, 0
	for _, p := range wr.Parts {
		for len(p) > 0 {
			k := len(c.wrs) - 1
			if room == 0 || int(c.wrs[k].count) == c.maxSend {
				c.wrs = append(c.wrs, workRequest{op: opWrite, raddr: to, rkey: uint32(wr.To.Handle), first: uint32(len(c.els))})
				k, room = len(c.wrs)-1, c.info.MaxMessage
			}
			n := min(len(p), room)
			if err := c.element(w, p[:n]); err != nil {
				c.abandon(w, mark, els)
				return err
			}
			c.wrs[k].count++
			to, room, p = to+uint64(n), room-n, p[n:]
		}
	}
	c.finish(w, mark)
	return nil
}

// PostRead implements fabric.Conn.
func (c *conn) PostRead(id uint64, r fabric.Read) error {
	if uint64(len(r.Into)) < uint64(r.From.Length) {
		return fmt.Errorf("ibverbs: Read of %d octets into %d", r.From.Length, len(r.Into))
	}
	if r.From.Length == 0 {
		return c.postIdle(id, fabric.OpRead)
	}
	if c.info.ORD == 0 {
		return errNoReads
	}
	w, err := c.begin(id, fabric.OpRead)
	if err != nil {
		return err
	}
	mark, els := len(c.wrs), len(c.els)
	into, from := r.Into[:r.From.Length], r.From.Offset
	if c.d.quirks.ReadIntoRemote && c.d.dev.iwarp {
		reg, err := registerMR(c.d.pd, into, address(into), localWrite|remoteWrite)
		if err != nil {
			c.abandon(w, mark, els)
			return c.d.memoryError(len(into), err)
		}
		w.mrs = append(w.mrs, reg.mr)
		c.els = append(c.els, element{address(into), uint32(len(into)), reg.lkey})
		w.keep = append(w.keep, into)
		c.wrs = append(c.wrs, workRequest{op: opRead, raddr: from, rkey: uint32(r.From.Handle), first: uint32(els), count: 1})
		c.finish(w, mark)
		return nil
	}
	// One element for each Work Request: iWARP has no more, and memory here is contiguous.
	for len(into) > 0 {
		n := min(len(into), c.info.MaxMessage)
		c.wrs = append(c.wrs, workRequest{op: opRead, raddr: from, rkey: uint32(r.From.Handle), first: uint32(len(c.els)), count: 1})
		if err := c.element(w, into[:n]); err != nil {
			c.abandon(w, mark, els)
			return err
		}
		into, from = into[n:], from+uint64(n)
	}
	c.finish(w, mark)
	return nil
}

// release ends the registrations that were made for w alone.
func (w *sendWork) release() {
	for _, mr := range w.mrs {
		_ = deregisterMR(mr)
	}
	clear(w.keep)
	w.keep, w.mrs = w.keep[:0], w.mrs[:0]
}

// flush gives the device what it has room for.
func (c *conn) flush() {
	if c.state == stateGone || c.state == stateEnding {
		return
	}
	if len(c.recvIDs) > 0 {
		n, err := c.poster.receive(c.qp, c.recvEls, c.recvIDs)
		c.recvGiven += n
		c.recvIDs, c.recvEls = c.recvIDs[:0], c.recvEls[:0]
		if err != nil {
			c.fail(fmt.Errorf("ibverbs: post a Receive: %w", err))
			return
		}
	}
	if c.state == stateStarting {
		return
	}
	n := min(len(c.wrs)-c.at, c.depth-int(c.given-c.done))
	if n <= 0 {
		return
	}
	if last := &c.wrs[c.at+n-1]; last.op == opBind {
		last.flags |= flagSignaled // nothing behind it tells that it is done
	}
	got, err := c.poster.send(c.qp, c.wrs[c.at:c.at+n], c.els)
	c.given += uint64(got)
	if err != nil {
		c.fail(fmt.Errorf("ibverbs: post a Work Request: %w", err))
		return
	}
	if c.at += n; c.at == len(c.wrs) {
		c.wrs, c.els, c.at = c.wrs[:0], c.els[:0], 0
	}
	c.stir()
}

// later asks the loop for a flush at the end of its pass.
func (c *conn) later() {
	if c.due || c.polling || c.begun.Load() != setupRunning {
		return
	}
	c.due = true
	c.loop.Post((*connFlush)(c))
}

// connFlush is the task that later posts.
type connFlush conn

func (t *connFlush) Run() {
	c := (*conn)(t)
	c.due = false
	c.flush()
}

// Flush implements fabric.Conn.
func (c *conn) Flush() {
	if !c.polling {
		c.flush()
	}
}
