package iwarp

import (
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// follows reports whether a tagged segment continues the tagged message in progress.
// Over one in-order stream the segments of a message are contiguous, and no other tagged
// message comes between them. The STag and TO of a segment without payload are ignored.
func (q *qp) follows(op wire.Opcode, h wire.Tagged) bool {
	r := &q.rx
	if !r.inTag {
		return true
	}
	return r.tagOp == op && (h.Len() == 0 || r.tagNone || r.tagS == h.STag() && r.tagTO == h.TO())
}

// checkWrite checks an RDMA Write segment as RFC 5041 Section 7.1 lists it.
func (q *qp) checkWrite(b []byte) []byte {
	h := wire.Tagged(b)
	n := h.Len()
	if !q.follows(wire.OpWrite, h) {
		q.refuse(wire.CodeTaggedBounds, headDDP)
		return nil
	}
	if n == 0 {
		return nil
	}
	reg := q.stags.find(h.STag())
	if reg == nil || reg.access&fabric.RemoteWrite == 0 {
		// DDP has no code for missing rights, and the peer need not learn that the STag
		// exists.
		q.refuseAccess(wire.CodeTaggedSTag, headDDP, reg.known())
		return nil
	}
	to := h.TO()
	if to+uint64(n) < to {
		q.refuseAccess(wire.CodeTaggedWrap, headDDP, reg.stag)
		return nil
	}
	dst, ok := reg.within(to, uint64(n))
	if !ok {
		q.refuseAccess(wire.CodeTaggedBounds, headDDP, reg.stag)
		return nil
	}
	q.rx.stag = reg.stag
	return dst
}

// checkResponse checks a segment of a Read Response against the oldest outstanding
// Read. "The Data Sink MAY validate" it, RFC 5040 Section 5.2.2; here it must.
func (q *qp) checkResponse(b []byte) []byte {
	h := wire.Tagged(b)
	n := h.Len()
	if q.asked == 0 {
		q.refuse(wire.CodeOpcode, headNone)
		return nil
	}
	rd := q.reads.at(0)
	got, size := uint64(rd.got), uint64(rd.req.Size)
	switch {
	case !q.follows(wire.OpReadResponse, h):
		q.refuse(wire.CodeTaggedBounds, headDDP)
	case n > 0 && h.STag() != rd.req.SinkSTag:
		q.refuse(wire.CodeTaggedSTag, headDDP)
	case n > 0 && h.TO()+uint64(n) < h.TO():
		q.refuse(wire.CodeTaggedWrap, headDDP)
	case n > 0 && h.TO() != rd.req.SinkTO+got,
		uint64(n) > size-got,
		h.Control().Last() && got+uint64(n) != size:
		q.refuse(wire.CodeTaggedBounds, headDDP)
	default:
		return rd.into[got : got+uint64(n)]
	}
	return nil
}

// checkUntagged checks the fields that all untagged messages have: queue, MSN, and
// offset mo.
func (q *qp) checkUntagged(h wire.Untagged, mo int) bool {
	qn := h.Control().Opcode().Queue()
	switch {
	case h.QN() != qn:
		q.refuse(wire.CodeQN, headDDP)
	case h.MSN() != q.rx.msn[qn]:
		q.refuse(wire.CodeMSN, headDDP)
	case uint64(h.MO()) != uint64(mo):
		q.refuse(wire.CodeMO, headDDP)
	default:
		return true
	}
	return false
}

// checkSend checks a segment of a Send of any kind.
func (q *qp) checkSend(b []byte) []byte {
	r := &q.rx
	h := wire.Untagged(b)
	n := h.Len()
	if r.inSend && r.sendOp != r.op {
		q.refuse(wire.CodeMSN, headDDP)
		return nil
	}
	if !q.checkUntagged(h, r.sendN) {
		return nil
	}
	if q.rtr() {
		return nil
	}
	if q.recvs.len() == 0 {
		// Waiting for a Receive would delay the tagged messages behind the Send too.
		q.refuse(wire.CodeNoBuffer, headDDP)
		return nil
	}
	rc := q.recvs.at(0)
	if n > len(rc.buf)-r.sendN {
		r.fault = fault{code: wire.CodeTooLong, head: headDDP} // it is raised behind the payload, which begins with an XID
		return nil
	}
	return rc.buf[r.sendN : r.sendN+n]
}

// rtr reports whether the FPDU is the zero-length Send that start-up agreed on, which
// is not delivered. RFC 6581 Section 9.2.
func (q *qp) rtr() bool {
	h := wire.Untagged(q.rx.head[:])
	return q.cfg.rtrSend && !q.rx.heard && h.Len() == 0 && h.Control().Last()
}

// checkRequest checks a Read Request.
func (q *qp) checkRequest(b []byte) {
	h := wire.ReadRequest(b)
	u := h.Untagged()
	if !q.checkUntagged(u, 0) {
		return
	}
	rd := requested(h)
	switch {
	case u.Control().ULPDULen() != wire.ReadRequestULPDU || !u.Control().Last():
		q.refuse(wire.CodeTooLong, headDDP)
	case q.irq.len() >= max(q.cfg.ird, 1), q.cfg.ird <= 0 && rd.Size > 0:
		// Adapters begin with a zero-length Read even when this side's IRD is 0, so one
		// such Read always fits.
		q.refuse(wire.CodeNoBuffer, headDDP)
	default:
		if _, c := q.source(rd.SrcSTag, rd.SrcTO, rd.Size); c != (wire.Code{}) {
			q.refuseAccess(c, headRead, q.stags.find(rd.SrcSTag).known())
		}
	}
}

func requested(h wire.ReadRequest) wire.Read {
	return wire.Read{
		SinkSTag: h.SinkSTag(), SinkTO: h.SinkTO(), Size: h.Size(),
		SrcSTag: h.SrcSTag(), SrcTO: h.SrcTO(),
	}
}

// source finds the octets that a Read asks for, or the code of the error. With a size
// of zero it "MUST NOT validate the Data Source STag and Data Source Tagged Offset". RFC
// 5040 Section 5.2.1.
func (q *qp) source(stag uint32, to uint64, size uint32) ([]byte, wire.Code) {
	if size == 0 {
		return nil, wire.Code{}
	}
	reg := q.stags.find(stag)
	switch {
	case reg == nil:
		return nil, wire.CodeReadSTag
	case reg.access&fabric.RemoteRead == 0:
		return nil, wire.CodeReadRights
	case to+uint64(size) < to:
		return nil, wire.CodeReadWrap
	}
	p, ok := reg.within(to, uint64(size))
	if !ok {
		return nil, wire.CodeReadBounds
	}
	return p, wire.Code{}
}

// checkTerminate checks the headers of a Terminate, and returns the place for its
// payload.
func (q *qp) checkTerminate(b []byte) []byte {
	h := wire.Untagged(b)
	if !q.checkUntagged(h, 0) {
		return nil
	}
	if h.Len() > len(q.rx.term) {
		q.refuse(wire.CodeTooLong, headDDP)
		return nil
	}
	return q.rx.term[:h.Len()]
}
