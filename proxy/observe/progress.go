package observe

import "github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"

// A Progress is what a Call carries for this package: when it got how far, and with what outcome. It fills a cache
// line, and belongs to whoever owns the Call.
type Progress struct {
	Class      Class // of the Reply, set by Classify as are Status, HasStatus and Octets
	HasStatus  bool  // Status is set
	Result     Result
	Absorbed   bool   // it has been counted as absorbed, and has no other result
	Copied     bool   // the client's connection has a copy of the Reply, and says what becomes of it
	Replays    uint8  // times it was sent again after a connection was lost
	Operations uint16 // of a COMPOUND; constant once the Call has begun, as are ClientXID and Size
	Times
	op        *Operation // nil for a message that is no Call of RPC version 2
	ClientXID uint32
	Size      int32  // octets of the Call
	Status    uint32 // of NFS or the like in the Reply
	Octets    int32  // of the Reply
}

// Begin counts the Call as one of op that is in flight. On the client's loop.
func (p *Progress) Begin(op *Operation) {
	p.op = op
	op.inFlight++
}

// Classify notes the class of a Reply that begins with first and has so many octets, at now. The first octets are in
// the cache then: the XID has just been written. The arguments of the Call have the protection given.
func (p *Progress) Classify(first []byte, protection oncrpc.Protection, octets int, now int64) {
	if p.Replied == 0 { // the bridge made the Reply because the upstream gave none
		p.Replied = now
	}
	if p.op != nil {
		p.Class, p.Status, p.HasStatus = ClassOf(first, protection, p.op.status)
	}
	p.Octets = int32(octets)
}
