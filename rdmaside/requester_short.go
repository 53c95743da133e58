package rdmaside

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// takeShort takes the message b of the completion c, whose Receive has the number i, if it is what nearly every
// message is: a short Reply without chunks to a Call without chunks, which its owner takes at once or which fits
// beside the Call. It looks only for what it can take. All else, errors too, is for decode and what follows it, which
// do the same for such a Reply with twice the instructions.
func (r *Requester) takeShort(c *fabric.Completion, i int, b []byte) bool {
	xid, granted, ok := rpcrdma.ParsePlain(b)
	if !ok || c.Invalidated != 0 {
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
	taken := r.opts.Take != nil && r.opts.Take(call, base)
	switch {
	case taken:
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
	if taken { // the owner has the Receive buffer until CallDone returns
		r.finish(pc)
		r.repost(i)
		return true
	}
	r.repost(i)
	r.finish(pc)
	return true
}
