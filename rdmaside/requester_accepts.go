package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Replies that are refused
//
// The answer to a Call is checked twice: accepts compares the header with what the Call offered,
// and rebuild reads the Payload stream once the Call's handles are dead. A Reply that fails a check
// ends its own RPC and nothing else: "The Requester MUST terminate the pending RPC transaction and
// report an appropriate permanent error to the RPC consumer." RFC 8166 Section 6.1. The Call's
// fate is Answered, so that it is not sent again, its handles are invalidated, and its credit is
// returned as after any answer.
//
// The connection ends only when the Requester cannot protect the memory of other Calls, or cannot
// speak with the peer at all, or when RDMA requires it:
//
//	a handle is invalidated that is not the answered Call's    distrust
//	a handle cannot be invalidated                             invalidate
//	the peer answers its first Call with ERR_VERS              take
//	a message is longer than a Receive                         tooLong
//	a handle is used in a way that it does not allow           misused
//	the provider reports another error of the peer             closed
//
// The Call that such a message is about has the fate Answered, too, as far as the provider tells which
// one it is: it would end the next connection in the same way.
//
// A header that cannot be decoded, or that has the XID of no Call, is discarded. docs/conformance.md
// has all refusals in a table.

// accepts checks the answer to pc as far as that is possible while the handles are valid: RFC 8166
// Sections 3.4.6, 4.2.4, 4.3. payload is the part of the message after the header h.
func (pc *pendingCall) accepts(h *rpcrdma.Header, payload []byte) error {
	if h.Proc == rpcrdma.Error {
		return nil
	}
	if err := pc.acceptChunks(h); err != nil {
		return refusal{reasonChunks, err}
	}
	if h.Proc == rpcrdma.NoMsg {
		if h.Reply == nil || len(payload) != 0 {
			return refusal{reasonChunks, fmt.Errorf("RDMA_NOMSG without Reply chunk or with %d octets inline", len(payload))}
		}
	} else if h.Reply != nil && h.Reply.Length() != 0 {
		return refusal{reasonChunks, fmt.Errorf("RDMA_MSG with %d octets in the Reply chunk", h.Reply.Length())}
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

// within checks a returned Write or Reply chunk against the segments offered.
//
// "The Responder pushes one data item to the Requester, filling the chunk contiguously and in
// segment array order [...] The Responder MUST copy the segment count and all segments from the
// Requester-provided Write chunk into the RPC Reply message's Transport header. As it does so, the
// Responder updates each segment length field". RFC 8166 Section 3.4.6.
//
// Segments that are missing count as unused. RFC 8267 Section 6.4.1 asks for a Write chunk without
// any when a READ returns no data, and old Linux servers return one at the end of each file.
func (pc *pendingCall) within(name string, w *rpcrdma.WriteChunk) error {
	offered, each := pc.shape.Segments()
	if len(w.Segments) > offered {
		return fmt.Errorf("%s: %d segments of %d", name, len(w.Segments), offered)
	}
	left, full := pc.offered[replyHandle].Length, true
	for i := range w.Segments {
		n, most := w.Segments[i].Length, min(left, each)
		if n > most {
			return fmt.Errorf("%s: %d octets of %d", name, n, most)
		}
		if n > 0 && !full {
			return fmt.Errorf("%s: %d octets behind a segment that is not full", name, n)
		}
		left, full = left-most, n == most
	}
	return nil
}

// peerInvalidated records that the message of c invalidated a handle. It reports whether that is
// one of pc's valid handles.
func (pc *pendingCall) peerInvalidated(c *fabric.Completion) bool {
	for i := range pc.handles {
		if pc.handles[i] != c.Invalidated {
			continue
		}
		pc.handles[i] = 0
		if i == replyHandle {
			pc.placed = c.Placed
		}
		return true
	}
	return false
}

// refused makes err the end of pc, whose Reply is refused.
func (pc *pendingCall) refused(err error) {
	pc.replied, pc.fate = true, Answered
	pc.err = fmt.Errorf("%w: %w", errInvalidReply, err)
}

// refuse fails pc because of the Reply to it.
func (r *Requester) refuse(pc *pendingCall, err error) {
	pc.refused(err)
	r.invalid(pc)
	r.report(pc.call, err, "reply refused; its call failed")
}

// distrust closes the connection because of a message that the peer sent. c is the Call that the
// message was about, or nil. All other Calls fail in limbo.
func (r *Requester) distrust(c *Call, err error) {
	if r.state != up {
		return
	}
	r.report(c, err, "invalid message from the responder; connection closed")
	r.end(fmt.Errorf("%w: %w", errInvalidReply, err))
}

// tooLong handles a message that was longer than a Receive, so that the connection is ending. b has its first octets.
// Unlike another Reply that is refused, it may fit when its Call offers a Reply chunk.
func (r *Requester) tooLong(b []byte) {
	if len(b) < 4 {
		return
	}
	if pc := r.pending(binary.BigEndian.Uint32(b)); pc != nil && pc.err == nil {
		pc.fate, pc.err = Answered, errReplyTooLong
		r.report(pc.call, refusal{reasonTooLong, errReplyTooLong}, "reply longer than the inline threshold; connection closed")
	}
}

// misused finds the Call whose handle the peer has used in a way that it does not allow, so that the connection has ended
// with err.
func (r *Requester) misused(err error) {
	var e *fabric.AccessError
	if !errors.As(err, &e) || e.Handle == 0 {
		return
	}
	for i := r.oldest; i >= 0; i = r.slots[i].next {
		pc := &r.slots[i]
		if !pc.replied && (pc.handles[callHandle] == e.Handle || pc.handles[replyHandle] == e.Handle) {
			pc.fate, pc.err = Answered, fmt.Errorf("%w: %w", errInvalidReply, err)
			r.report(pc.call, refusal{reasonAccess, err}, "invalid access to the memory of a call; connection closed")
			return
		}
	}
}

// report counts a refusal and logs it, as often as the limit allows.
func (r *Requester) report(c *Call, err error, what string) {
	r.metrics.refused(err)
	e := r.opts.Lines.refused.Line(&r.opts.Log, zerolog.WarnLevel, "reply_refused").Stringer("peer", r.info.Peer).Err(err)
	if c != nil {
		e = e.Uint32("xid", c.XID).Str("operation", c.Analysis.Procedure)
	}
	e.Msg(what)
}
