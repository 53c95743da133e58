package rdmaside

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// takeInPlace takes b as takeShort does, and the Receive for it stays posted. It leaves the message to a completion when
// fewer Receives are wanted after it, and when the memory of several Calls is read at once before their Replies are
// handled. fabric.ConnOptions.
func (r *Requester) takeInPlace(b []byte) bool {
	if r.state != up || r.recvs.posted > r.wanted(r.credits.Outstanding-1) || r.warms() || !r.takeShort(b) {
		return false
	}
	r.tally.octetsReceived += uint64(len(b))
	return true
}

// takeShort takes the message b if it is what nearly every message is: a short Reply without chunks to a Call without
// chunks, which its owner takes at once or which fits beside the Call. It looks only for what it can take. All else,
// errors too, is for decode and what follows it, which do the same for such a Reply with twice the instructions. The
// caller has b until takeShort returns.
func (r *Requester) takeShort(b []byte) bool {
	xid, granted, ok := rpcrdma.ParsePlain(b)
	if !ok {
		return false
	}
	at, slot := r.xids.Find(xid)
	if slot == 0 {
		return false
	}
	pc := &r.slots[slot-1]
	base, call := b[rpcrdma.PlainLen:], pc.call
	if pc.shape.Call != ulb.CallInline || pc.shape.Reply != ulb.ReplyInline || pc.sending ||
		call.Reply.n != 0 || r.grants.any() ||
		len(base)%4 != 0 || oncrpc.CheckReply(base) != nil || binary.BigEndian.Uint32(base) != xid {
		return false
	}
	switch {
	case r.opts.Take != nil && r.opts.Take(call, base):
	case len(base) <= int(call.Spare):
		r.tally.copied += uint64(copy(call.beside(len(base)), base))
		call.Reply.add(call.beside(len(base)))
		call.Reply.beside = true
	default:
		return false
	}
	r.xids.RemoveAt(at)
	r.credits.Grant(granted)
	r.understood = true
	r.finish(pc)
	return true
}
