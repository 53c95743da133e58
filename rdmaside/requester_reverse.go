package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A ReverseHandler handles the Calls that the Responder sends. This is the
// reverse direction of RFC 8167, in which NFSv4.1 servers call their clients
// back.
type ReverseHandler interface {
	// ReverseCall takes m, a plain RPC Call that fits in a Receive buffer, on the
	// loop of r. The handler answers with r.ReverseReply or r.ReverseRefuse. If
	// ReverseCall returns false it did not take m, and r answers SYSTEM_ERR. If
	// the handler takes a Call and never answers it, the Responder waits as long
	// as it likes.
	ReverseCall(r *Requester, m *regmem.Lease) bool
}

// ErrNoReverseCall is returned by ReverseReply when no Call with the XID waits
// for an answer on the connection.
var ErrNoReverseCall = errors.New("rdmaside: reply to no reverse call")

// A reverseLine is the reverse direction of a Requester's connection.
//
// It grants ReverseReceives credits, which bounds the Calls outstanding. There
// are twice as many slots for answers, because the peer may send its next Call
// before the completion of the Send that allowed it. The XIDs of the two
// directions are independent: RFC 8167 Section 2.4.
type reverseLine struct {
	calls []uint32     // XIDs of the outstanding Calls, oldest first
	slots []Releaser   // for each slot, released when its Send completes
	idle  []int32      // free slots; never fewer than calls
	call  oncrpc.Call  // scratch
	none  reverseEmpty // the Releaser of answers made here
}

// reverseEmpty is the Releaser of an answer made here. It releases nothing.
type reverseEmpty struct{}

func (reverseEmpty) Release() {}

func (v *reverseLine) init(credits int) {
	v.calls = make([]uint32, 0, credits)
	v.slots = make([]Releaser, 2*credits)
	v.idle = make([]int32, 2*credits)
	for i := range v.idle {
		v.idle[i] = int32(i)
	}
}

// find returns the index of xid in calls, or -1.
func (v *reverseLine) find(xid uint32) int {
	for i, x := range v.calls {
		if x == xid {
			return i
		}
	}
	return -1
}

// forget removes the Call at index i from those outstanding.
func (v *reverseLine) forget(i int) {
	v.calls = v.calls[:i+copy(v.calls[i:], v.calls[i+1:])]
}

// reverseCall handles a Call that the Responder sent without chunks.
func (r *Requester) reverseCall(payload []byte, h *rpcrdma.Header) {
	r.metrics.reverseCalls.Inc()
	v := &r.reverse
	if err := oncrpc.ParseCall(payload, &v.call); err != nil || v.call.XID != h.XID {
		r.metrics.droppedReverse.Inc() // "the RPC Call header MUST start with the same XID", Section 5.1
		return
	}
	if r.opts.Reverse == nil {
		r.refuseReverse(h.XID, reverseProgram)
		return
	}
	if i := v.find(h.XID); i >= 0 {
		v.forget(i) // a retransmission: it gets one answer
	}
	if n := len(v.calls); n > 0 && n == cap(v.calls) {
		// The peer has given up on one of its Calls, which it may do at any time,
		// or it overruns its credits. An answer to the forgotten Call is then
		// dropped as a stray.
		v.forget(0)
		r.metrics.reverseLost.Inc()
	}
	if len(v.calls) == cap(v.calls) || len(v.calls) >= len(v.idle) {
		r.metrics.droppedReverse.Inc() // the Call exceeds the grant: drop it
		return
	}
	// Copy the Call so that its Receive is posted again at once. Otherwise a
	// client that does not answer would occupy the Receives of Replies.
	l, err := r.opts.Memory.Lease(len(payload))
	if err != nil {
		r.refuseReverse(h.XID, reverseMemory)
		return
	}
	r.tally.copied += uint64(copy(l.Bytes(), payload))
	v.calls = append(v.calls, h.XID)
	if !r.opts.Reverse.ReverseCall(r, l) {
		l.Release()
		if i := v.find(h.XID); i >= 0 {
			v.forget(i)
			r.refuseReverse(h.XID, reverseClient)
		}
	}
}

// reverseChunks refuses a reverse Call that came with chunks or in one.
//
// "If a reverse-direction requester provides a non-empty chunk list to a
// Responder that does not support chunks, the Responder MUST reply with an
// RDMA_ERROR message with rdma_err field set to ERR_CHUNK." RFC 8167 Section 5.3.
func (r *Requester) reverseChunks(h *rpcrdma.Header) {
	r.metrics.reverseCalls.Inc()
	xid := h.XID
	h.SetError(xid, rpcrdma.Version, uint32(r.opts.ReverseReceives), rpcrdma.ErrChunk)
	r.sendReverse(reverseChunk, func(b []byte) []byte { return h.Append(b) })
}

// ReverseReply answers the Call xid, which ReverseHandler.ReverseCall took, with
// the plain RPC Reply m, in memory of a regmem arena. It never blocks. m is lent
// until done.Release is called, on the loop, possibly before ReverseReply
// returns.
//
// This direction has no chunks. If m does not fit the inline threshold or is no
// RPC Reply, the Responder gets SYSTEM_ERR instead. The only error is
// ErrNoReverseCall: the Call was answered or forgotten, never existed, or the
// connection is closed. Then m is still the caller's.
func (r *Requester) ReverseReply(xid uint32, m []byte, done Releaser) error {
	i := r.reverse.find(xid)
	if r.state != up || i < 0 {
		return ErrNoReverseCall
	}
	r.reverse.forget(i)
	refuse := func(why reverseRefusal) {
		r.refuseReverse(xid, why)
		done.Release()
	}
	switch {
	case !oncrpc.IsReply(m, xid):
		refuse(reverseMalformed)
	case rpcrdma.PlainLen+len(m) > r.info.CallInline:
		refuse(reverseLong)
	default:
		r.metrics.reverseReplies.Inc()
		slot, b := r.reverseSlot()
		r.postReverse(slot, done, rpcrdma.AppendPlain(b, xid, uint32(r.opts.ReverseReceives)), m)
	}
	return nil
}

// LongestReverseCall is the length of the longest RPC Call that the Responder can send: it has no
// chunks here and must fit inline. It may be called on any goroutine.
func (r *Requester) LongestReverseCall() int { return r.info.ReplyInline - rpcrdma.PlainLen }

// ReverseRefuse answers the Call xid, which ReverseHandler.ReverseCall took, with
// SYSTEM_ERR, because its client will not answer. It does nothing when
// ReverseReply would return ErrNoReverseCall.
func (r *Requester) ReverseRefuse(xid uint32) {
	i := r.reverse.find(xid)
	if r.state != up || i < 0 {
		return
	}
	r.reverse.forget(i)
	r.refuseReverse(xid, reverseClient)
}

// refuseReverse answers a reverse Call with an error.
func (r *Requester) refuseReverse(xid uint32, why reverseRefusal) {
	stat := uint32(oncrpc.SystemError)
	if why == reverseProgram {
		stat = oncrpc.ProgramUnavailable
	}
	r.sendReverse(why, func(b []byte) []byte {
		b = rpcrdma.AppendPlain(b, xid, uint32(r.opts.ReverseReceives))
		return oncrpc.AppendAccepted(b, xid, stat)
	})
}

// sendReverse sends the answer that build makes, if there is a slot that no
// outstanding Call may need. A peer that overruns its credits gets no answer.
func (r *Requester) sendReverse(why reverseRefusal, build func(b []byte) []byte) {
	if len(r.reverse.idle) <= len(r.reverse.calls) {
		r.metrics.droppedReverse.Inc()
		return
	}
	r.metrics.reverseRefused[why].Inc()
	slot, b := r.reverseSlot()
	if b = build(b); len(b) > headerLen {
		panic("BUG: rdmaside: reverse reply longer than its buffer")
	}
	r.postReverse(slot, r.reverse.none, b, nil)
}

// reverseSlot allocates a slot and returns it with its header buffer.
func (r *Requester) reverseSlot() (slot int32, b []byte) {
	v := &r.reverse
	slot = v.idle[len(v.idle)-1]
	v.idle = v.idle[:len(v.idle)-1]
	return slot, r.headerBuffer(int32(len(r.slots)) + slot)
}

// postReverse sends an answer: header, followed by m unless it is nil.
func (r *Requester) postReverse(slot int32, done Releaser, header, m []byte) {
	parts := append(r.parts[:0], header)
	if m != nil {
		parts = append(parts, m)
	}
	r.reverse.slots[slot] = done
	if err := r.conn.PostSend(uint64(len(r.slots))+uint64(slot)+1, fabric.Send{Parts: parts}); err != nil {
		r.reverseSent(int(slot))
		r.end(fmt.Errorf("rdmaside: reverse reply: %w", err))
	}
}

// reverseSent frees a slot whose Send has completed.
func (r *Requester) reverseSent(slot int) {
	v := &r.reverse
	done := v.slots[slot]
	v.slots[slot] = nil
	v.idle = append(v.idle, int32(slot))
	done.Release()
}

// isReverse reports whether a message with chunks is a reverse Call. The RPC
// message tells the direction (RFC 8167 Section 4.1). In RDMA_NOMSG that message
// is in a chunk, and only a Call can be in a Position Zero Read chunk.
func (r *Requester) isReverse(h *rpcrdma.Header, payload []byte) bool {
	switch h.Proc {
	case rpcrdma.Msg:
		return len(payload) >= 8 && binary.BigEndian.Uint32(payload[4:]) == oncrpc.TypeCall
	case rpcrdma.NoMsg:
		return len(h.Reads) > 0 && h.Reads[0].Position == 0 && !(h.Reply != nil && r.pending(h.XID) != nil)
	}
	return false
}
