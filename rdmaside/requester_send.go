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

// The handles of a pendingCall, by what they cover.
const (
	callHandle  = iota // the Call, or its argument: RemoteRead
	replyHandle        // the Write or Reply chunk: RemoteWrite
	callHandles
)

// A pendingCall is a slot of a Requester and the Call that has it.
//
// It ends when three things have happened, in any order: its Send has completed
// (B1), its Reply has come, and its handles are dead (B4). Or when the
// connection has.
type pendingCall struct {
	index int32 // constant: in Requester.slots
	call  *Call // nil when the slot is free

	prev, next int32         // neighbours in the order sent, -1 for none
	sent       time.Duration // since Requester.base

	procedure uint32 // of call, whose message need not be looked at again

	shape   ulb.Shape
	chunk   *regmem.Lease                // Write or Reply chunk
	handles [callHandles]fabric.Handle   // 0 when there is none or it is dead
	offered [callHandles]rpcrdma.Segment // as advertised

	sending bool // the Send has not completed
	replied bool // nothing more comes from the peer
	fate    Fate
	err     error // why there is no Reply; nil when there is one or none yet

	// The Reply, once replied.
	base    *regmem.Lease // holds the Payload stream when it was inline
	from    int           // where in base it begins
	noMsg   bool          // the Payload stream is in the Reply chunk
	written uint32        // octets in chunk
}

// Work Request IDs of a Call: its slot plus one, and which handle for an
// Invalidate.
func (pc *pendingCall) sendID() uint64        { return uint64(pc.index) + 1 }
func (pc *pendingCall) handleID(i int) uint64 { return uint64(pc.index) + 1 | uint64(i)<<32 }
func splitID(id uint64) (slot, handle int)    { return int(uint32(id)) - 1, int(id >> 32) }
func (pc *pendingCall) live() bool            { return pc.handles != [callHandles]fabric.Handle{} }
func (pc *pendingCall) ready() bool           { return pc.replied && !pc.sending && !pc.live() }
func segment(g fabric.Region) rpcrdma.Segment {
	return rpcrdma.Segment{Handle: uint32(g.Handle), Length: g.Length, Offset: g.Offset}
}

// Send posts c. An error means that nothing was posted and c was not taken:
// ErrNoCredit, ErrBusyXID, ErrNoMemory, ErrProviderBusy, ErrClosed,
// ulb.ErrTooLong, or an error about c itself. Otherwise c.Owner.CallDone follows, never before Send has
// returned.
func (r *Requester) Send(c *Call) error {
	if r.state != up || r.leaving {
		return ErrClosed
	}
	m := c.Message
	if len(m) < 24 || c.XID != binary.BigEndian.Uint32(m) || c.Owner == nil || c.Binding == nil {
		return fmt.Errorf("rdmaside: call of %d octets is not one, or its XID, owner or binding is missing", len(m))
	}
	if r.credits.Free() == 0 {
		return ErrNoCredit
	}
	if _, busy := r.xids.get(c.XID); busy {
		return ErrBusyXID
	}
	// Receives posted are never fewer than the Calls outstanding and the Calls the
	// peer may send in the reverse direction.
	need := int(r.credits.Outstanding) + 1 + r.opts.ReverseReceives
	if r.recvs.posted < need {
		if err := r.recvs.fill(need); err != nil {
			c.need = r.recvs.size
			return r.sendError(err)
		}
	}
	shape, err := r.opts.Registry.Plan(&c.Analysis, len(m), r.info.CallInline, r.info.ReplyInline)
	if err != nil {
		return err
	}

	pc := &r.slots[r.idle[len(r.idle)-1]]
	pc.shape, pc.procedure = shape, binary.BigEndian.Uint32(m[20:])
	if err := r.register(pc, c); err != nil {
		return r.undo(pc, c, err)
	}
	pc.sending = true
	if err := r.conn.PostSend(pc.sendID(), fabric.Send{Parts: r.gather(pc, c)}); err != nil {
		pc.sending = false
		return r.undo(pc, c, err)
	}
	r.accept(pc, c)
	r.metrics.sent(shape, len(m))
	return nil
}

// accept makes c the Call of the slot pc.
func (r *Requester) accept(pc *pendingCall, c *Call) {
	if !r.credits.Take() {
		panic("BUG: rdmaside: a call was sent without a credit")
	}
	r.idle = r.idle[:len(r.idle)-1]
	pc.call, pc.fate = c, InLimbo
	r.xids.put(c.XID, int(pc.index))
	r.enqueue(pc)
	r.publish()
}

// register leases and registers what the shape of pc needs.
func (r *Requester) register(pc *pendingCall, c *Call) error {
	var area []byte
	switch pc.shape.Call {
	case ulb.CallReadChunk:
		pos, n := uint64(c.Analysis.ArgPosition), uint64(c.Analysis.ArgLength)
		if n == 0 || pos%4 != 0 || pos < 24 || pos+n > uint64(len(c.Message)) {
			return fmt.Errorf("rdmaside: argument of %d octets at %d of a call of %d", n, pos, len(c.Message))
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
			c.need = int(pc.shape.Capacity)
			return err
		}
		l.Post()
		pc.chunk = l
		// For writing only: what the block held before cannot be read by the peer.
		g, err := r.conn.Register(l.Bytes(), fabric.RemoteWrite)
		if err != nil {
			return err
		}
		pc.handles[replyHandle], pc.offered[replyHandle] = g.Handle, segment(g)
	}
	return nil
}

// sendError puts err in the words of Send. The provider's connection may have
// ended before Requester learns of it: between the first flushed completion and
// Closed.
func (r *Requester) sendError(err error) error {
	switch {
	case errors.Is(err, fabric.ErrClosed):
		return ErrClosed
	case errors.Is(err, fabric.ErrLimit), errors.Is(err, fabric.ErrQueueFull):
		return fmt.Errorf("%w: %w", ErrProviderBusy, err)
	}
	return r.memoryError(err)
}

// memoryError tells want of memory now from want of memory ever.
func (r *Requester) memoryError(err error) error {
	if errors.Is(err, regmem.ErrBudget) {
		r.metrics.noMemory.Inc()
		return ErrNoMemory
	}
	return err
}

// gather builds the Transport header of pc in its buffer and returns what is to
// be sent, header first.
func (r *Requester) gather(pc *pendingCall, c *Call) [][]byte {
	b := r.headerBuffer(pc.index)
	requested := r.credits.Requested
	if pc.shape.Call == ulb.CallInline && pc.shape.Reply == ulb.ReplyInline {
		b = rpcrdma.AppendPlain(b, c.XID, requested)
	} else {
		h := &r.header
		h.Reset(c.XID, requested, rpcrdma.Msg)
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
			h.SetReply(pc.offered[replyHandle])
		}
		b = h.Append(b)
	}
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

// headerBuffer is the empty header buffer with the index given.
func (r *Requester) headerBuffer(i int32) []byte {
	at := headerLen * int(i)
	return r.headers.Bytes()[at : at : at+headerLen]
}

// undo takes back what register did for a Call that was not sent, and returns
// the error for Send. When a handle does not die at once the Call is taken all
// the same and ends as not sent when it has.
func (r *Requester) undo(pc *pendingCall, c *Call, err error) error {
	err = r.sendError(err)
	r.invalidate(pc)
	if !pc.live() {
		pc.clear()
		return err
	}
	r.accept(pc, c)
	r.xids.remove(c.XID) // no Reply to it will come, and c may be sent again
	pc.replied, pc.fate, pc.err = true, NotSent, err
	return nil
}

// clear releases what the slot holds and frees it of its Call. Its handles are
// dead.
func (pc *pendingCall) clear() {
	if pc.chunk != nil {
		pc.chunk.Unpost()
		pc.chunk.Release()
	}
	if pc.base != nil {
		pc.base.Release()
	}
	*pc = pendingCall{index: pc.index}
}

// Wait calls t once, on any goroutine, when a Send of c that failed with
// ErrNoMemory may succeed. It may be called on any goroutine, and is a hint:
// another Call may have taken the memory by then.
func (r *Requester) Wait(c *Call, t func()) { r.opts.Memory.Wait(c.need, t) }
