package rdmaside

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// copyBelow is the longest inline Payload stream, in octets, that is copied
// out of its Receive buffer. A Reply waits for its client as long as the
// client likes, and GETATTR's 128 octets should not hold 16 KiB meanwhile.
const copyBelow = 1024

func (r *Requester) completed(cs []fabric.Completion) {
	warms := r.warms()
	for i := range cs {
		if warms && i%warmBatch == 0 {
			r.warm(cs[i:min(i+warmBatch, len(cs))])
		}
		c := &cs[i]
		switch c.Op {
		case fabric.OpReceive:
			r.received(c)
		case fabric.OpSend:
			r.sendDone(c)
		case fabric.OpInvalidate:
			r.invalidated(c)
		}
	}
	if r.opts.Took != nil {
		r.opts.Took()
	}
	r.tellGrant()
	r.metrics.add(&r.tally)
}

func (r *Requester) sendDone(c *fabric.Completion) {
	slot, _ := splitID(c.ID)
	if c.Err != nil {
		r.broken("send", c.Err)
	}
	if slot >= len(r.slots) {
		r.reverseSent(slot - len(r.slots))
		return
	}
	pc := &r.slots[slot]
	pc.sending = false
	r.settle(pc)
}

func (r *Requester) invalidated(c *fabric.Completion) {
	slot, handle := splitID(c.ID)
	if c.Err != nil {
		r.broken("invalidate", c.Err) // closing the connection invalidates the handle
		return
	}
	pc := &r.slots[slot]
	pc.handles[handle] = 0
	r.settle(pc)
}

// received handles one Receive. Every path out of it hands the buffer on or
// reposts it: rule B3.
func (r *Requester) received(c *fabric.Completion) {
	i := r.recvs.completed(c.ID)
	if c.Err != nil || r.state != up {
		if b := r.recvs.bytes(i); errors.Is(c.Err, fabric.ErrTooLong) && c.Bytes >= 0 && int(c.Bytes) <= len(b) {
			r.tooLong(b[:c.Bytes])
		}
		r.recvs.drop(i)
		if c.Err != nil {
			r.broken("receive", c.Err)
		}
		return
	}
	b := r.recvs.bytes(i)
	if c.Bytes < 0 || int(c.Bytes) > len(b) {
		r.recvs.drop(i)
		r.end(fmt.Errorf("rdmaside: receive of %d octets in a buffer of %d", c.Bytes, len(b)))
		return
	}
	b = c.Message(b)
	r.tally.octetsReceived += uint64(len(b))
	if c.Invalidated == 0 && r.takeShort(b) {
		r.repost(i)
		return
	}
	pc, n := r.decode(b)
	if pc == nil {
		r.stray(c)
		r.repost(i)
		return
	}
	if c.Invalidated != 0 && !pc.peerInvalidated(c) {
		r.recvs.drop(i)
		r.betrayed(pc, c.Invalidated)
		return
	}
	r.replied(pc, i, n, b)
}

// betrayed closes the connection because the answer to pc invalidated the handle h, which is not
// pc's. Another Call may need h, so that the connection cannot go on. pc is not sent again: it was
// answered, and another connection would end in the same way.
func (r *Requester) betrayed(pc *pendingCall, h fabric.Handle) {
	err := refusal{reasonHandle, fmt.Errorf("handle %#08x invalidated is not the call's", uint32(h))}
	r.xids.Remove(pc.call.XID)
	pc.refused(err)
	r.distrust(pc.call, err)
}

// decode decodes the Transport header of the message b into r.header and returns
// the Call that the message answers and the length of the header. If it answers
// none, decode handles or discards it and returns nil.
func (r *Requester) decode(b []byte) (pc *pendingCall, n int) {
	h := &r.header
	if xid, credits, ok := rpcrdma.ParsePlain(b); ok {
		h.Reset(xid, credits, rpcrdma.Msg)
		n = rpcrdma.PlainLen
		// The RPC message tells the direction: RFC 8167 Section 4.1.
		if _, mtype, ok := oncrpc.MessageType(b[n:]); ok && mtype == oncrpc.TypeCall {
			r.reverseCall(b[n:], h)
			return nil, 0
		}
	} else {
		var err error
		if n, err = h.Decode(b); err != nil {
			// "If errors are detected in the RPC-over-RDMA header of an RPC Reply message,
			// a Requester MUST silently discard the message." RFC 8166 Section 4.5. If it
			// was the answer to a Call, the deadline of that Call handles it.
			r.metrics.droppedHeader.Inc()
			return nil, 0
		}
		if r.isReverse(h, b[n:]) {
			r.reverseChunks(h)
			return nil, 0
		}
	}
	if h.Proc == rpcrdma.MsgP || h.Proc == rpcrdma.Done {
		// "Requesters MUST silently discard the message", Section 4.6.1;
		// "Receivers MUST silently discard RDMA_DONE messages", Section 4.6.2.
		r.metrics.droppedProc.Inc()
		return nil, 0
	}
	if pc = r.pending(h.XID); pc == nil {
		r.metrics.droppedStray.Inc()
	}
	return pc, n
}

// replied handles the answer to pc: r.header, and the Payload stream b[n:] in Receive buffer i.
func (r *Requester) replied(pc *pendingCall, i, n int, b []byte) {
	h := &r.header
	r.xids.Remove(h.XID)
	pc.replied = true
	r.announced(pc, h.Credits)
	fatal := false
	if err := pc.accepts(h, b[n:]); err != nil {
		r.refuse(pc, err)
		r.repost(i)
	} else {
		fatal = r.take(pc, i, n, b)
	}
	if pc.chunk != nil {
		pc.placed = r.placed(pc)
	}
	// "the Requester must not access these memory regions while the Responder has
	// access to them." RFC 8166 Section 4.4.1.
	err := pc.err
	r.invalidate(pc)
	r.settle(pc)
	if fatal {
		r.end(err)
	}
}

// take takes the answer to pc that accepts has accepted. It reports whether the connection must
// end because of it.
func (r *Requester) take(pc *pendingCall, i, n int, b []byte) (fatal bool) {
	h := &r.header
	switch h.Proc {
	case rpcrdma.Error:
		pc.fate = Answered
		pc.err = errChunk
		if h.Err == rpcrdma.ErrVers {
			pc.err = fmt.Errorf("%w: it speaks %d to %d", errVersion, h.Low, h.High)
			// A peer that has answered other Calls speaks version 1. Its mistake is about one
			// Call, and no reason to end those of others.
			fatal = !r.understood
		}
		r.valid(pc)
		r.metrics.errorReceived(h.Err)
		r.repost(i)
	case rpcrdma.NoMsg:
		pc.noMsg, pc.written = true, uint32(h.Reply.Length())
		r.repost(i)
	default:
		if len(h.Writes) == 1 {
			pc.written = uint32(h.Writes[0].Length())
		}
		r.keep(pc, i, n, b)
	}
	r.understood = r.understood || h.Proc != rpcrdma.Error || h.Err != rpcrdma.ErrVers
	return fatal
}

// placed returns how many octets of pc's chunk, from the first on, are not what the memory held
// before.
func (r *Requester) placed(pc *pendingCall) uint32 {
	switch {
	case r.tracker == nil:
		return pc.offered[replyHandle].Length // register has cleared it
	case pc.handles[replyHandle] == 0:
		return pc.placed // the peer has invalidated the handle
	}
	return r.tracker.Placed(pc.handles[replyHandle])
}

// keep makes the Payload stream b[n:] the base of pc's Reply. b is in Receive buffer i, or in place. keep posts the
// buffer again, or another.
func (r *Requester) keep(pc *pendingCall, i, n int, b []byte) {
	if size := len(b) - n; size > 0 && size <= int(pc.call.Spare) {
		r.tally.copied += uint64(copy(pc.call.beside(size), b[n:]))
		pc.beside = int32(size)
		r.repost(i)
		return
	}
	if len(b)-n <= copyBelow {
		if l, err := r.opts.Memory.Lease(len(b) - n); err == nil {
			r.tally.copied += uint64(copy(l.Bytes(), b[n:]))
			pc.base, pc.from = l, 0
			r.repost(i)
			return
		}
	}
	if buf := r.recvs.bytes(i); len(b) > 0 && &b[0] != &buf[0] {
		copy(buf, b) // it came in place
	}
	pc.base, pc.from = r.recvs.take(i), int32(n)
	pc.base.Resize(len(b))
	// Without memory now, a later Send posts the Receive, because it needs it.
	if err := r.recvs.fill(min(r.recvs.posted+1, r.wanted(r.credits.Outstanding))); err != nil {
		r.receiveError(err)
	}
}

// stray closes the connection if a message that answers no Call invalidated a
// handle. A peer may only invalidate a handle of the Call that it answers.
func (r *Requester) stray(c *fabric.Completion) {
	if c.Invalidated != 0 {
		r.distrust(nil, refusal{reasonHandle, fmt.Errorf("handle %#08x invalidated by a message that answers no call", uint32(c.Invalidated))})
	}
}

// wanted returns how many Receives should be posted while so many Calls are outstanding: those for the Calls and the
// reverse direction, and a few extra.
func (r *Requester) wanted(outstanding uint32) int {
	n := int(outstanding) + 1 + r.opts.ReverseReceives + extraReceives
	return min(max(n, r.opts.IdleReceives), len(r.recvs.buffers))
}

// repost returns Receive buffer i to the provider, or releases it when fewer are
// wanted now.
func (r *Requester) repost(i int) {
	if r.state != up || r.recvs.posted >= r.wanted(r.credits.Outstanding) {
		r.recvs.drop(i)
		return
	}
	if err := r.recvs.post(i); err != nil {
		r.receiveError(err)
	}
}

// receiveError closes the connection when a Receive cannot be posted for a reason
// other than a lack of memory.
func (r *Requester) receiveError(err error) {
	if r.memoryError(err) != ErrNoMemory { //nolint:errorlint // the sentinel itself
		r.end(fmt.Errorf("rdmaside: post receive: %w", err))
	}
}
