package rdmaside

import (
	"encoding/binary"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// copyBelow is the longest inline Payload stream, in octets, that is copied
// out of its Receive buffer. A Reply waits for its client as long as the
// client likes, and GETATTR's 128 octets should not hold 16 KiB meanwhile.
const copyBelow = 1024

func (r *Requester) completed(cs []fabric.Completion) {
	for i := range cs {
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
		r.recvs.drop(i)
		if c.Err != nil {
			r.broken("receive", c.Err)
		}
		return
	}
	b := r.recvs.bytes(i)
	if c.Bytes < 0 || c.Bytes > len(b) {
		r.recvs.drop(i)
		r.end(fmt.Errorf("rdmaside: receive of %d octets in a buffer of %d", c.Bytes, len(b)))
		return
	}
	b = b[:c.Bytes]
	r.tally.octetsReceived += uint64(len(b))
	pc, n := r.decode(b)
	if pc == nil {
		r.stray(c)
		r.repost(i)
		return
	}
	if err := r.accepts(pc, &r.header, b[n:], c.Invalidated); err != nil {
		r.refuse(pc, err)
		r.recvs.drop(i)
		return
	}
	r.replied(pc, i, n, b)
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
	slot, ok := r.xids.get(h.XID)
	if !ok {
		r.metrics.droppedStray.Inc()
		return nil, 0
	}
	return &r.slots[slot], n
}

// replied handles the answer to pc: r.header, which accepts has checked, and the
// Payload stream b[n:] in Receive buffer i.
func (r *Requester) replied(pc *pendingCall, i, n int, b []byte) {
	h := &r.header
	r.xids.remove(h.XID)
	pc.replied = true
	changed := r.credits.Grant(h.Credits)
	switch h.Proc {
	case rpcrdma.Error:
		pc.fate = Answered
		pc.err = errChunk
		if h.Err == rpcrdma.ErrVers {
			pc.err = fmt.Errorf("%w: it speaks %d to %d", errVersion, h.Low, h.High)
		}
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
	// "the Requester must not access these memory regions while the Responder has
	// access to them." RFC 8166 Section 4.4.1.
	fatal := pc.err != nil && pc.err != errChunk //nolint:errorlint // the sentinel itself
	err := pc.err
	r.invalidate(pc)
	r.settle(pc)
	if fatal {
		r.end(err)
	}
	if changed && r.state == up {
		r.publish()
		r.watcher.Granted(r, r.Grant())
	}
}

// keep makes the Payload stream b[n:] in Receive buffer i the base of pc's Reply,
// and posts another buffer in its place.
func (r *Requester) keep(pc *pendingCall, i, n int, b []byte) {
	if len(b)-n <= copyBelow {
		if l, err := r.opts.Memory.Lease(len(b) - n); err == nil {
			r.tally.copied += uint64(copy(l.Bytes(), b[n:]))
			pc.base, pc.from = l, 0
			r.repost(i)
			return
		}
	}
	pc.base, pc.from = r.recvs.take(i), n
	pc.base.Resize(len(b))
	// Without memory now, a later Send posts the Receive, because it needs it.
	if err := r.recvs.fill(min(r.recvs.posted+1, r.wanted())); err != nil {
		r.receiveError(err)
	}
}

// stray closes the connection if a message that answers no Call invalidated a
// handle. A peer may only invalidate a handle of the Call that it answers.
func (r *Requester) stray(c *fabric.Completion) {
	if c.Invalidated != 0 {
		r.refuse(nil, refusal{reasonHandle, fmt.Errorf("handle %#08x invalidated by a message that answers no call", uint32(c.Invalidated))})
	}
}

// accepts checks the answer to pc as far as possible while the handles are valid: RFC 8166
// Sections 3.4.6, 4.2.4, 4.3. payload is the part of the message after the header; inv is the
// handle that the Send invalidated, or 0.
func (r *Requester) accepts(pc *pendingCall, h *rpcrdma.Header, payload []byte, inv fabric.Handle) error {
	if inv != 0 && !pc.peerInvalidated(inv) {
		return refusal{reasonHandle, fmt.Errorf("handle %#08x invalidated is not the call's", uint32(inv))}
	}
	if h.Proc == rpcrdma.Error {
		return nil
	}
	if err := pc.acceptChunks(h); err != nil {
		return refusal{reasonChunks, err}
	}
	length := uint64(len(payload))
	if h.Proc == rpcrdma.NoMsg {
		if h.Reply == nil || len(payload) != 0 {
			return refusal{reasonChunks, fmt.Errorf("RDMA_NOMSG without Reply chunk or with %d octets inline", len(payload))}
		}
		length = h.Reply.Length()
	} else {
		if h.Reply != nil && h.Reply.Length() != 0 {
			return refusal{reasonChunks, fmt.Errorf("RDMA_MSG with %d octets in the Reply chunk", h.Reply.Length())}
		}
		// "the value of the rdma_xid field does not match the value of the XID field
		// in the accompanying RPC message", Section 4.5.2.
		if len(payload) >= 4 && binary.BigEndian.Uint32(payload) != h.XID {
			return refusal{reasonPayload, fmt.Errorf("payload has XID %#08x", binary.BigEndian.Uint32(payload))}
		}
	}
	if length < oncrpc.MinReply {
		return refusal{reasonPayload, fmt.Errorf("reply of %d octets", length)}
	}
	return nil
}

// acceptChunks checks the lists of an answer to pc against what pc offered.
func (pc *pendingCall) acceptChunks(h *rpcrdma.Header) error {
	// "Responders MUST leave the Read list empty in all replies." Section 4.3.1.
	if len(h.Reads) != 0 {
		return fmt.Errorf("%d segments in the Read list", len(h.Reads))
	}
	// A Write list that is missing from the Reply is taken as unused: some
	// Responders ignore it and send the result inline.
	if len(h.Writes) > 0 && (pc.shape.Reply != ulb.ReplyWriteChunk || len(h.Writes) > 1) {
		return fmt.Errorf("%d Write chunks", len(h.Writes))
	}
	for i := range h.Writes {
		if err := pc.within("Write chunk", &h.Writes[i]); err != nil {
			return err
		}
	}
	if h.Reply == nil {
		return nil
	}
	if pc.shape.Reply != ulb.ReplyChunk {
		if h.Reply.Length() != 0 {
			return fmt.Errorf("a Reply chunk of %d octets was not offered", h.Reply.Length())
		}
		return nil
	}
	return pc.within("Reply chunk", h.Reply)
}

// peerInvalidated records that the peer invalidated h. It reports whether h is one of pc's
// valid handles.
func (pc *pendingCall) peerInvalidated(h fabric.Handle) bool {
	for i := range pc.handles {
		if pc.handles[i] == h {
			pc.handles[i] = 0
			return true
		}
	}
	return false
}

// within checks a returned Write or Reply chunk against the one segment offered.
//
// "The Responder MUST copy the segment count and all segments from the
// Requester-provided Write chunk into the RPC Reply message's Transport header.
// As it does so, the Responder updates each segment length field". RFC 8166
// Section 3.4.6.
func (pc *pendingCall) within(name string, w *rpcrdma.WriteChunk) error {
	if len(w.Segments) != 1 {
		return fmt.Errorf("%s: %d segments of 1", name, len(w.Segments))
	}
	if n, most := w.Segments[0].Length, pc.offered[replyHandle].Length; n > most {
		return fmt.Errorf("%s: %d octets of %d", name, n, most)
	}
	return nil
}

// wanted returns how many Receives should be posted now: those for the
// outstanding Calls and the reverse direction, and a few extra.
func (r *Requester) wanted() int {
	n := int(r.credits.Outstanding) + 1 + r.opts.ReverseReceives + extraReceives
	return min(max(n, r.opts.IdleReceives), len(r.recvs.buffers))
}

// repost returns Receive buffer i to the provider, or releases it when fewer are
// wanted now.
func (r *Requester) repost(i int) {
	if r.state != up || r.recvs.posted >= r.wanted() {
		r.recvs.drop(i)
		return
	}
	r.receiveError(r.recvs.post(i))
}

// receiveError closes the connection when a Receive cannot be posted for a reason
// other than a lack of memory.
func (r *Requester) receiveError(err error) {
	if err != nil && r.memoryError(err) != ErrNoMemory { //nolint:errorlint // the sentinel itself
		r.end(fmt.Errorf("rdmaside: post receive: %w", err))
	}
}
