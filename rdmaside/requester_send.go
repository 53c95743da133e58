package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// Indexes of pendingCall.handles and pendingCall.offered.
const (
	callHandle  = iota // handle of the Call or its argument, for RemoteRead
	replyHandle        // handle of the Write or Reply chunk, for RemoteWrite
	callHandles
)

// A pendingCall is a slot of a Requester and the Call in it.
//
// The Call completes when three things have happened, in any order: its Send has
// completed (B1), or was copied when it was posted; its Reply has come; and its
// handles are invalidated (B4). It also completes when the connection is closed.
type pendingCall struct {
	index int32 // index in Requester.slots; constant
	call  *Call // nil when the slot is free

	prev, next int32         // neighbours in the list of Calls, oldest first; -1 for none
	sent       time.Duration // when the Call was sent, on the clock of Requester.since
	late       bool          // counted in Requester.late

	procedure uint32 // procedure number, copied because the message is not read again

	shape   ulb.Shape
	chunk   *regmem.Lease                // the Write or Reply chunk; nil for none
	handles [callHandles]fabric.Handle   // 0 when there is none or it is invalidated
	offered [callHandles]rpcrdma.Segment // the segments as advertised

	sending bool // the Send was not copied, and has not completed
	replied bool // the peer has answered
	fate    Fate
	err     error // why the Call has failed; nil if it has a Reply or is still outstanding

	// The Reply, valid once replied is set.
	base    *regmem.Lease // holds the Payload stream if the peer sent it inline and it is not beside the Call
	from    int32         // offset of the Payload stream in base
	beside  int32         // octets of the Payload stream, if it is in call.beside; else 0
	noMsg   bool          // the Payload stream is in the Reply chunk
	written uint32        // octets that the peer says it has written to chunk
	placed  uint32        // octets from the start of chunk that hold nothing older than the Call
}

// The ID of a Work Request is the Call's slot plus one. The ID of an Invalidate also has the
// handle's index in its high half.
func (pc *pendingCall) sendID() uint64        { return uint64(pc.index) + 1 }
func (pc *pendingCall) handleID(i int) uint64 { return uint64(pc.index) + 1 | uint64(i)<<32 }
func splitID(id uint64) (slot, handle int)    { return int(uint32(id)) - 1, int(id >> 32) }
func (pc *pendingCall) live() bool            { return pc.handles != [callHandles]fabric.Handle{} }
func (pc *pendingCall) ready() bool           { return pc.replied && !pc.sending && !pc.live() }
func segment(g fabric.Region) rpcrdma.Segment {
	return rpcrdma.Segment{Handle: uint32(g.Handle), Length: g.Length, Offset: g.Offset}
}

// Send posts c. If Send fails, it has posted nothing, and the caller still owns c. The error is
// ErrNoCredit, ErrBusyXID, ErrNoMemory, ErrProviderBusy, ErrClosed or ulb.ErrTooLong, or
// describes a defect of c. If Send succeeds, the Requester calls c.Owner.CallDone once, after
// Send has returned.
func (r *Requester) Send(c *Call) error {
	if r.state != up || r.retiring {
		return ErrClosed
	}
	m := c.Message
	if len(m) < 24 || c.XID != binary.BigEndian.Uint32(m) || c.Owner == nil || c.Binding == nil {
		return fmt.Errorf("rdmaside: message of %d octets is no Call, or its XID, owner or binding is missing", len(m))
	}
	if r.credits.Free() == 0 {
		return ErrNoCredit
	}
	// The peer may answer every outstanding Call and send Calls in the reverse direction, and
	// each of these messages needs a posted Receive.
	need := int(r.credits.Outstanding) + 1 + r.opts.ReverseReceives
	if r.recvs.posted < need {
		if err := r.recvs.fill(need); err != nil {
			c.need = uint32(r.recvs.size)
			return r.sendError(err)
		}
	}
	shape, err := r.opts.Registry.Plan(&c.Analysis, len(m), r.info.CallInline, r.info.ReplyInline)
	if err != nil {
		return err
	}

	slot := r.idle[len(r.idle)-1]
	if !r.xids.Put(c.XID, slot+1) {
		return ErrBusyXID
	}
	pc := &r.slots[slot]
	pc.shape, pc.procedure = shape, binary.BigEndian.Uint32(m[20:])
	plain := shape.Call == ulb.CallInline && shape.Reply == ulb.ReplyInline
	if !plain {
		if err := r.register(pc, c); err != nil {
			return r.undo(pc, c, err)
		}
	}
	if plain && r.copyPlain(c) {
		// most Calls
	} else if parts := r.gather(pc, c); r.copier == nil || !r.copier.SendCopy(parts) {
		if err := r.conn.PostSend(pc.sendID(), fabric.Send{Parts: parts}); err != nil {
			return r.undo(pc, c, err)
		}
		pc.sending = true
	}
	r.accept(pc, c)
	c.Shape = shape
	r.tally.sent(shape, len(m), c.Analysis.ArgLength)
	return nil
}

// pending returns the Call with this XID that has no answer yet, or nil.
func (r *Requester) pending(xid uint32) *pendingCall {
	if i := r.xids.Get(xid); i != 0 {
		return &r.slots[i-1]
	}
	return nil
}

// copyPlain sends c, which has no chunks, if the provider can copy it.
func (r *Requester) copyPlain(c *Call) bool {
	if r.copier == nil {
		return false
	}
	rpcrdma.PutPlain(r.plain[0], c.XID, r.credits.Requested)
	r.plain[1] = c.Message
	return r.copier.SendCopy(r.plain[:])
}

// accept assigns c, whose XID is in the table, to the slot pc.
func (r *Requester) accept(pc *pendingCall, c *Call) {
	if !r.credits.Take() {
		panic("BUG: rdmaside: a call was sent without a credit")
	}
	r.idle = r.idle[:len(r.idle)-1]
	pc.call, pc.fate = c, InLimbo
	r.enqueue(pc)
}

// register leases and registers the memory that the shape of pc needs.
func (r *Requester) register(pc *pendingCall, c *Call) error {
	var area []byte
	switch pc.shape.Call {
	case ulb.CallReadChunk:
		pos, n := uint64(c.Analysis.ArgPosition), uint64(c.Analysis.ArgLength)
		if n == 0 || pos%4 != 0 || pos < 24 || pos+n > uint64(len(c.Message)) {
			return fmt.Errorf("rdmaside: argument of %d octets at offset %d of a call of %d octets", n, pos, len(c.Message))
		}
		// "the Requester SHOULD NOT include the data item's XDR roundup padding in
		// the chunk." RFC 8166 Section 3.4.5.2.
		area = c.Message[pos : pos+n]
	case ulb.CallLong:
		area = c.Message
	}
	if area != nil {
		g, err := r.conn.Register(area, fabric.RemoteRead)
		if err != nil {
			return err
		}
		pc.handles[callHandle], pc.offered[callHandle] = g.Handle, segment(g)
	}
	if pc.shape.Reply != ulb.ReplyInline {
		l, err := r.opts.Memory.Lease(int(pc.shape.Capacity))
		if err != nil {
			c.need = pc.shape.Capacity
			return err
		}
		l.Post()
		pc.chunk = l
		if r.tracker == nil {
			clear(l.Bytes()) // nobody will tell what the peer has written
		}
		// The region is for writing only: the peer cannot read what the block
		// held before.
		g, err := r.conn.Register(l.Bytes(), fabric.RemoteWrite)
		if err != nil {
			return err
		}
		pc.handles[replyHandle], pc.offered[replyHandle] = g.Handle, segment(g)
	}
	return nil
}

// invalidate invalidates the handles of pc that are still valid. The provider does so at once,
// or reports a completion later.
func (r *Requester) invalidate(pc *pendingCall) {
	for i, h := range pc.handles {
		if h == 0 {
			continue
		}
		done, err := r.conn.Invalidate(pc.handleID(i), h)
		if err != nil {
			// "if it is unable to invalidate a memory region due to an unrecoverable
			// problem, the Requester MUST close the connection to protect that memory
			// from Responder access before the associated RPC transaction is complete."
			// RFC 8166 Section 4.5.4.
			r.end(fmt.Errorf("rdmaside: invalidate: %w", err))
			return
		}
		if done {
			pc.handles[i] = 0
		}
	}
}

// sendError translates err into one of Send's errors. The provider has already closed its
// connection between the first flushed completion and the call of Closed.
func (r *Requester) sendError(err error) error {
	switch {
	case errors.Is(err, fabric.ErrClosed):
		return ErrClosed
	case errors.Is(err, fabric.ErrLimit), errors.Is(err, fabric.ErrQueueFull):
		return fmt.Errorf("%w: %w", ErrProviderBusy, err)
	}
	return r.memoryError(err)
}

// memoryError translates a temporary lack of memory into ErrNoMemory. It returns other errors
// unchanged, such as the error for a lease that can never succeed.
func (r *Requester) memoryError(err error) error {
	if errors.Is(err, regmem.ErrBudget) {
		r.metrics.noMemory.Inc()
		return ErrNoMemory
	}
	return err
}

// gather builds the Transport header of pc in the slot's buffer and returns the parts to send,
// header first.
func (r *Requester) gather(pc *pendingCall, c *Call) [][]byte {
	h := &r.header
	h.Reset(c.XID, r.credits.Requested, rpcrdma.Msg)
	switch pc.shape.Call {
	case ulb.CallReadChunk:
		h.AddRead(c.Analysis.ArgPosition, pc.offered[callHandle])
	case ulb.CallLong:
		h.Proc = rpcrdma.NoMsg
		h.AddRead(0, pc.offered[callHandle])
	}
	switch pc.shape.Reply {
	case ulb.ReplyWriteChunk:
		h.AddWrite(pc.offered[replyHandle])
	case ulb.ReplyChunk:
		var segments [ulb.MaxSegments]rpcrdma.Segment
		h.SetReply(pc.segments(segments[:0])...)
	}
	b := h.Append(r.headerBuffer(pc.index))
	if len(b) > headerLen {
		panic("BUG: rdmaside: header longer than its buffer")
	}
	parts := append(r.parts[:0], b)
	switch pc.shape.Call {
	case ulb.CallInline:
		parts = append(parts, c.Message)
	case ulb.CallReadChunk:
		// "the sender MUST remove XDR roundup padding for that data item from the
		// Payload stream". RFC 8166 Section 3.4.4.4.
		pos := int(c.Analysis.ArgPosition)
		end := min(pos+int(c.Analysis.ArgLength+3)&^3, len(c.Message))
		parts = append(parts, c.Message[:pos])
		if end < len(c.Message) {
			parts = append(parts, c.Message[end:])
		}
	}
	return parts
}

// segments appends the segments of pc's Reply chunk to to.
func (pc *pendingCall) segments(to []rpcrdma.Segment) []rpcrdma.Segment {
	count, each := pc.shape.Segments()
	left := pc.offered[replyHandle]
	for range count {
		s := left
		s.Length = min(s.Length, each)
		to = append(to, s)
		left.Offset += uint64(s.Length)
		left.Length -= s.Length
	}
	return to
}

// headerBuffer returns the empty header buffer with index i.
func (r *Requester) headerBuffer(i int32) []byte {
	at := headerLen * int(i)
	return r.headers.Bytes()[at : at : at+headerLen]
}

// undo reverts register for a Call that was not sent, and returns the error for Send. If the
// provider cannot invalidate a handle at once, undo accepts the Call after all. The Call then
// completes as NotSent when its handles are invalidated.
func (r *Requester) undo(pc *pendingCall, c *Call, err error) error {
	err = r.sendError(err)
	r.xids.Remove(c.XID) // the peer never saw the Call, so its XID may be used again
	r.invalidate(pc)
	if !pc.live() {
		r.clear(pc)
		return err
	}
	r.accept(pc, c)
	pc.replied, pc.fate, pc.err = true, NotSent, err
	return nil
}

// clear releases the leases of the slot and empties it. The slot has no valid handle.
func (r *Requester) clear(pc *pendingCall) {
	if pc.chunk != nil {
		pc.chunk.Unpost()
		r.opts.Memory.Release(pc.chunk)
	}
	if pc.base != nil {
		r.opts.Memory.Release(pc.base)
	}
	*pc = pendingCall{index: pc.index}
}

// Wait is for a Call c whose Send failed with ErrNoMemory. It calls t once, on any goroutine,
// when Send may succeed. That is only a hint: another Call may have used the memory by then.
// Wait is safe for concurrent use.
func (r *Requester) Wait(c *Call, t func()) { r.opts.Memory.Wait(int(c.need), t) }
