package rdmaside

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// reverseCall answers a Call that the Responder sent: no program is served in
// the reverse direction here. RFC 8167 Section 4. A peer that sends more of them
// than it was granted gets no answer, which is what an overrun deserves.
func (r *Requester) reverseCall(payload []byte, h *rpcrdma.Header) {
	r.metrics.reverseCalls.Inc()
	xid, _, _ := oncrpc.MessageType(payload)
	if xid != h.XID || len(r.reverse) == 0 {
		r.metrics.droppedReverse.Inc()
		return
	}
	slot := r.reverse[len(r.reverse)-1]
	b := rpcrdma.AppendPlain(r.headerBuffer(slot), xid, uint32(r.opts.ReverseReceives))
	b = oncrpc.AppendAccepted(b, xid, oncrpc.ProgramUnavailable)
	if len(b) > headerLen {
		panic("BUG: rdmaside: reverse reply longer than its buffer")
	}
	r.parts[0] = b
	if err := r.conn.PostSend(uint64(slot)+1, fabric.Send{Parts: r.parts[:1]}); err != nil {
		r.end(fmt.Errorf("rdmaside: reverse reply: %w", err))
		return
	}
	r.reverse = r.reverse[:len(r.reverse)-1]
}
