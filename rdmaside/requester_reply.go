package rdmaside

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// shrinkBelow is the longest content of a chunk, in octets, that is copied
// out of it when most of the chunk is unused. A chunk is as large as a Reply
// may get, a megabyte for programs without a binding, and the Reply occupies
// it until its client has read it.
const shrinkBelow = 64 << 10

// settle completes pc unless it waits for something: see pendingCall.
func (r *Requester) settle(pc *pendingCall) {
	if pc.call == nil || !pc.ready() {
		return
	}
	if pc.err == nil {
		r.read(pc)
	}
	r.finish(pc)
}

// read rebuilds the Reply of pc, or refuses it.
func (r *Requester) read(pc *pendingCall) {
	if err := r.rebuild(pc); err != nil {
		r.refuse(pc, err)
	} else {
		r.valid(pc)
	}
}

// rebuild assembles the plain Reply of pc. Its handles are invalidated.
func (r *Requester) rebuild(pc *pendingCall) error {
	if pc.live() {
		panic("BUG: rdmaside: a Reply is read while the peer can write to it (B4)")
	}
	c := pc.call
	var base []byte
	switch {
	case pc.noMsg:
		if err := pc.wrote(pc.written); err != nil {
			return err
		}
		base = pc.chunk.Bytes()[:pc.written]
	case pc.beside > 0:
		base = c.beside(int(pc.beside))
	default:
		base = pc.base.Bytes()[pc.from:]
	}
	if err := oncrpc.CheckReply(base); err != nil {
		return refusal{reasonPayload, err}
	}
	// "the value of the rdma_xid field does not match the value of the XID field in the accompanying RPC message": RFC 8166
	// Section 4.5.2.
	if xid := binary.BigEndian.Uint32(base); xid != c.XID {
		return refusal{reasonPayload, fmt.Errorf("payload has XID %#08x", xid)}
	}
	reply := &c.Reply
	if reply.n > 0 { // not empty: the owner has not released it
		*reply = Reply{}
	}
	if pc.noMsg {
		if len(base)%4 != 0 {
			return refusal{reasonPayload, fmt.Errorf("reply of %d octets", len(base))}
		}
		r.tally.chunks[chunkReply] += uint64(len(base))
		l := r.shrink(pc, len(base))
		reply.add(l.Bytes())
		reply.leases[0] = l
		return nil
	}
	s, spliced, err := ulb.Restore(c.Binding, pc.procedure, base, pc.written)
	if err != nil {
		return refusal{reasonPayload, err}
	}
	if (uint64(len(base))+uint64(s.Length)+uint64(s.Padding))%4 != 0 {
		return refusal{reasonPayload, fmt.Errorf("reply of %d octets", uint64(len(base))+uint64(s.Length))}
	}
	if !spliced {
		reply.add(base)
	} else {
		if uint64(s.Pos) > uint64(len(base)) || s.Pos < 4 || s.Length > pc.written || s.Padding > 3 {
			panic("BUG: ulb: Restore cuts outside its message")
		}
		if err := pc.wrote(s.Length); err != nil {
			return err
		}
		r.tally.chunks[chunkWrite] += uint64(s.Length)
		l := r.shrink(pc, int(s.Length))
		reply.add(base[:s.Pos])
		// The padding goes after the data in the same block, which has room for
		// it unless it is full to the last octet.
		if n := int(s.Length + s.Padding); n <= l.Cap() {
			l.Resize(n)
			clear(l.Bytes()[s.Length:])
			reply.add(l.Bytes())
		} else {
			reply.add(l.Bytes())
			reply.add(zeros[:s.Padding])
		}
		reply.add(base[s.Pos:])
		reply.leases[1] = l
	}
	reply.beside = pc.beside > 0
	reply.leases[0], pc.base = pc.base, nil
	return nil
}

var zeros [4]byte

// wrote checks that the peer has written the first n octets of pc's chunk. A lease is not cleared
// before it is used again: the other octets may be another client's.
func (pc *pendingCall) wrote(n uint32) error {
	if n > pc.placed {
		return refusal{reasonUnwritten, fmt.Errorf("%d octets claimed, %d written", n, pc.placed)}
	}
	return nil
}

// shrink returns the first n octets of pc's chunk as a lease: a block of their
// own when they leave most of the chunk unused, else the chunk's.
func (r *Requester) shrink(pc *pendingCall, n int) *regmem.Lease {
	l := pc.chunk
	pc.chunk = nil
	l.Unpost()
	if n <= shrinkBelow && n < l.Cap()/4 {
		if small, err := r.opts.Memory.Lease(n); err == nil {
			r.tally.copied += uint64(copy(small.Bytes(), l.Bytes()))
			r.opts.Memory.Release(l)
			return small
		}
	}
	l.Resize(n)
	return l
}

// finish returns the Call of pc to its owner, with the Reply or with pc.err.
func (r *Requester) finish(pc *pendingCall) {
	if pc.live() {
		panic("BUG: rdmaside: a call ends while its handles live (B4)")
	}
	c, fate, err := pc.call, pc.fate, pc.err
	if err == nil || fate == Answered {
		r.answered(pc)
	}
	r.dequeue(pc)
	r.clear(pc)
	r.idle = append(r.idle, pc.index)
	r.credits.Put()
	if err == nil {
		c.Owner.CallDone(c, nil)
	} else {
		r.metrics.failed(fate)
		local := fate != Answered || errors.Is(err, errInvalidReply)
		c.Owner.CallDone(c, &CallError{XID: c.XID, Fate: fate, Local: local, Err: err})
	}
	if r.retiring {
		r.retire()
	}
}
