package iwarp

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// The receive path. Octets arrive in any portions. Only headers are collected, in
// rx.head; payload is placed at its destination as it arrives.
//
//	control (4) -> rest of the header -> payload -> pad and CRC -> control ...
//
// A header is checked in full before the first octet of payload is placed. An error is
// remembered as a fault while the rest of the FPDU is dropped, and raised once the CRC
// has shown that the peer sent the FPDU like this. With the CRC off it is raised at
// once. The package comment says why placing before checking the CRC is safe.

type rxPhase uint8

const (
	rxHeader rxPhase = iota
	rxReady          // a whole header waits until completions are delivered
	rxPayload
	rxTail
)

// wholeBelow is the longest ULPDU whose CRC is compared at once, when all of it has arrived. The
// payload of longer ones is placed while the CRC passes over it, and need not be in the cache twice.
const wholeBelow = 4096

// The headers of an FPDU that a Terminate quotes.
const (
	headNone uint8 = iota
	headDDP        // segment length and DDP header: the M and D bits
	headRead       // those and the Read Request header: the M, D and R bits
)

// A fault is the error of an FPDU. The zero value means no fault: its code is CodeLocal,
// which never reports an error of the peer.
type fault struct {
	code wire.Code
	head uint8
	stag uint32 // valid, and used in a way that it does not allow; 0 for none
}

func (f fault) set() bool { return f != fault{} }

type rx struct {
	// The FPDU in progress.
	phase rxPhase
	op    wire.Opcode
	head  [wire.MaxHeaderLen]byte
	have  int // octets of head
	need  int
	fault fault
	left  int    // payload octets to come
	dst   []byte // their destination; nil when they are dropped
	stag  uint32 // the STag of dst; 0 for a Receive or a Read sink
	crc   uint32
	tail  [3 + wire.CRCLen]byte
	tailN int // octets of tail received
	tails int // octets of tail in all
	// checked says that the CRC was compared before anything else was done with the FPDU. See whole.
	checked bool
	// lends says that the octets of the present input stay where they are until its completions are delivered.
	lends bool

	// The messages in progress.
	heard  bool      // a good FPDU has arrived
	msn    [3]uint32 // next MSN expected, by queue
	sendOp wire.Opcode
	sendN  int  // octets of the Send in progress
	inSend bool // the last segment of the Send is still missing

	inTag   bool // the last segment of a tagged message is still missing
	tagNone bool // its segments so far had no payload, and so neither STag nor TO
	tagOp   wire.Opcode
	tagS    uint32
	tagTO   uint64 // the TO at which its next segment starts

	term [wire.MaxTerminate]byte
}

// reset prepares for the next FPDU.
func (r *rx) reset() {
	r.phase, r.have, r.need = rxHeader, 0, wire.ControlLen
	r.fault = fault{}
	r.left, r.dst, r.stag = 0, nil, 0
	r.tailN = 0
	r.crc, r.checked = 0, false
}

// long reports whether the FPDU is of a Send that is longer than the Receive.
func (r *rx) long() bool { return r.fault.code == wire.CodeTooLong && r.op.Queue() == wire.QueueSend }

// inside reports whether the stream stands inside an FPDU.
func (r *rx) inside() bool { return r.phase != rxHeader || r.have > 0 }

// input consumes octets in stream order, and returns those it has not consumed. It
// stops early when hungry reports true; then completions must be delivered before the
// next call.
func (q *qp) input(b []byte) []byte {
	r := &q.rx
	for q.alive() && (len(b) > 0 || r.phase == rxReady) {
		switch r.phase {
		case rxHeader:
			if r.have == 0 {
				n := q.whole(b)
				if b = b[n:]; n > 0 || !q.alive() {
					continue
				}
			}
			n := copy(r.head[r.have:r.need], b)
			b = b[n:]
			switch r.have += n; {
			case r.have < r.need:
				return nil
			case r.have == wire.ControlLen:
				q.control()
			case q.starved() || q.overwrites():
				r.phase = rxReady
				return b
			default:
				q.header()
			}
		case rxReady:
			q.header()
		case rxPayload:
			n := min(len(b), r.left)
			switch {
			case r.dst != nil:
				q.copied += copy(r.dst, b[:n])
			case r.long():
				r.sendN += copy(q.recvs.at(0).buf[r.sendN:], b[:n])
			}
			q.placed(b[:n])
			b = b[n:]
		case rxTail:
			if r.checked && r.tailN == 0 && len(b) >= r.tails {
				b = b[r.tails:]
				q.fpdu()
				continue
			}
			n := copy(r.tail[r.tailN:r.tails], b)
			b = b[n:]
			if r.tailN += n; r.tailN == r.tails {
				q.fpdu()
			}
		}
	}
	return nil
}

// whole compares the CRC of the FPDU with which b begins, if b has all of it and it is short. That
// is one pass over octets that lie together, where header, payload and pad would be three. A wrong
// CRC ends the connection. whole returns how many octets it has consumed: all of an FPDU that
// takeShort takes, or none.
func (q *qp) whole(b []byte) int {
	if !q.cfg.crc || len(b) < wire.ControlLen {
		return 0
	}
	n := wire.Control(b).ULPDULen()
	end := wire.FPDULen(n)
	if n < wire.TaggedLen-2 || n > wholeBelow || len(b) < end {
		return 0
	}
	if at := end - wire.CRCLen; wire.Checksum(b[:at]) != wire.CRC(b[at:]) {
		q.raise(fault{code: wire.CodeCRC})
		return 0
	}
	if q.takeShort(b[:2+n]) {
		return end
	}
	q.rx.checked = true
	return 0
}

// takeShort takes b, the header and the payload of an FPDU with a good CRC, if that is all of a Send
// for which a Receive waits: what nearly every Call and Reply without chunks is. It looks only for
// what it can take. All else, errors too, is for the phases of input, which do the same for such a Send
// in twice the time.
func (q *qp) takeShort(b []byte) bool {
	r := &q.rx
	h := wire.Untagged(b)
	if len(b) < wire.UntaggedLen || !h.Control().Alone(wire.OpSend) || !r.heard || r.inSend ||
		h.QN() != wire.QueueSend || h.MSN() != r.msn[wire.QueueSend] || h.MO() != 0 || q.recvs.len() == 0 {
		return false
	}
	into, payload := q.recvs.at(0).buf, b[wire.UntaggedLen:]
	if len(payload) > len(into) {
		return false
	}
	if r.lends && q.cfg.take != nil && len(q.cs) == 0 && q.cfg.take(payload) {
		r.msn[wire.QueueSend]++
		q.took++
		return true
	}
	c := q.receiveDone(len(payload))
	if r.lends {
		c.Data = payload
	} else {
		q.copied += copy(into, payload)
	}
	return true
}

// receiveDone completes the oldest Receive with a Send of n octets, and returns the completion.
func (q *qp) receiveDone(n int) *fabric.Completion {
	rc := q.recvs.at(0)
	c := q.completed()
	c.ID, c.Op, c.Bytes = rc.id, fabric.OpReceive, int32(n)
	*rc = receive{}
	q.recvs.pop()
	q.rx.msn[wire.QueueSend]++
	return c
}

// starved reports whether a Send finds no Receive while completions of Receives wait
// for delivery. The ULP may post Receives again when it gets these.
func (q *qp) starved() bool {
	switch q.rx.op {
	case wire.OpSend, wire.OpSendInvalidate, wire.OpSendEvent, wire.OpSendEventInvalidate:
		return q.recvs.len() == 0 && len(q.cs) > 0
	default:
		return false
	}
}

// overwrites reports whether a Write goes to memory where octets are written already, while
// completions wait for delivery. One of these may be that of a Send after which the ULP reads these
// octets: it must not find those of the Write, whose CRC was not checked yet. When it has handled
// the Send, the memory is no longer the peer's. A peer that writes each octet once never gets here.
func (q *qp) overwrites() bool {
	if q.rx.op != wire.OpWrite || len(q.cs) == 0 {
		return false
	}
	h := wire.Tagged(q.rx.head[:])
	r := q.stags.find(h.STag())
	return r != nil && (r.placed.more != nil || h.TO()-r.to < uint64(r.placed.run))
}

// hungry reports whether input stopped because completions must be delivered first.
func (q *qp) hungry() bool { return q.rx.phase == rxReady && q.alive() }

// placed records that the payload octets p have been written to dst, or were dropped.
func (q *qp) placed(p []byte) {
	r := &q.rx
	if r.dst != nil {
		r.dst = r.dst[len(p):]
	}
	if q.cfg.crc && !r.checked {
		r.crc = wire.Update(r.crc, p)
	}
	if r.left -= len(p); r.left == 0 {
		r.phase = rxTail
	}
}

// sink returns the memory into which the next octets of the stream may be read: the
// destination of the rest of the payload in progress, or nil. The caller reports to
// sunk how many it has read.
func (q *qp) sink() []byte {
	if q.rx.phase != rxPayload || !q.alive() {
		return nil
	}
	return q.rx.dst
}

func (q *qp) sunk(n int) { q.placed(q.rx.dst[:n]) }

// ahead returns the number of octets before the payload of the next FPDU, if that is
// tagged. Reading just these lets the caller read the payload to its destination.
func (q *qp) ahead() int {
	if q.rx.phase != rxTail {
		return 0
	}
	return q.rx.tails - q.rx.tailN + wire.TaggedLen
}

// control checks the first four octets, which determine the length of the header.
func (q *qp) control() {
	r := &q.rx
	h := wire.Control(r.head[:])
	n, op := h.ULPDULen(), h.Opcode()
	r.op = op
	switch {
	case n < wire.TaggedLen-2:
		q.refuse(wire.CodeMarker, headNone)
	case h.DDPVersion() != wire.DDPVersion && h.Tagged():
		q.refuse(wire.CodeTaggedVersion, headNone)
	case h.DDPVersion() != wire.DDPVersion:
		q.refuse(wire.CodeUntaggedVersion, headNone)
	case h.RDMAPVersion() != wire.RDMAPVersion:
		q.refuse(wire.CodeRDMAPVersion, headNone)
	case !op.Known() || op.Tagged() != h.Tagged():
		// The opcode determines the layout. A T bit that contradicts it is an error.
		q.refuse(wire.CodeOpcode, headNone)
	case n+2 < op.HeaderLen():
		q.refuse(wire.CodeMarker, headNone)
	default:
		r.need = op.HeaderLen()
		return
	}
	q.payload(nil)
}

// refuse remembers the fault of the FPDU until its CRC is checked, or raises it at once
// when there is no CRC.
func (q *qp) refuse(c wire.Code, head uint8) { q.refuseAccess(c, head, 0) }

// refuseAccess does what refuse does, for an FPDU that uses stag in a way that it does not allow.
func (q *qp) refuseAccess(c wire.Code, head uint8, stag uint32) {
	q.rx.fault = fault{c, head, stag}
	if !q.cfg.crc {
		q.raise(q.rx.fault)
	}
}

// header checks a whole header and finds the payload's destination.
func (q *qp) header() {
	r := &q.rx
	var dst []byte
	switch r.op {
	case wire.OpWrite:
		dst = q.checkWrite(r.head[:])
	case wire.OpReadResponse:
		dst = q.checkResponse(r.head[:])
	case wire.OpReadRequest:
		q.checkRequest(r.head[:])
	case wire.OpTerminate:
		dst = q.checkTerminate(r.head[:])
	case wire.OpSend, wire.OpSendInvalidate, wire.OpSendEvent, wire.OpSendEventInvalidate:
		dst = q.checkSend(r.head[:])
	}
	q.payload(dst)
}

// payload begins the payload. It is placed at dst, or dropped if dst is nil or the FPDU
// has a fault.
func (q *qp) payload(dst []byte) {
	r := &q.rx
	if r.fault.set() {
		dst = nil
	}
	if q.cfg.crc && !r.checked {
		r.crc = wire.Update(0, r.head[:r.have])
	}
	n := wire.Control(r.head[:]).ULPDULen()
	r.tails = wire.Pad(n) + wire.CRCLen
	r.left = 2 + n - r.have
	r.phase = rxPayload
	if r.left <= 0 {
		// The ULPDU has 0 or 1 octets, so the control octets include some of its pad.
		r.tails += r.left
		r.left = 0
		r.phase = rxTail
	}
	r.dst = dst
}

// fpdu processes an FPDU whose last octet has arrived.
func (q *qp) fpdu() {
	r := &q.rx
	if q.cfg.crc && !r.checked {
		pad := r.tails - wire.CRCLen
		if wire.Update(r.crc, r.tail[:pad]) != wire.CRC(r.tail[pad:]) {
			q.raise(fault{code: wire.CodeCRC})
			return
		}
	}
	if r.fault.set() {
		if r.long() {
			c := q.receiveDone(r.sendN)
			c.Err = fmt.Errorf("%w: %w", fabric.ErrFlushed, fabric.ErrTooLong)
		}
		q.raise(r.fault)
		return
	}
	h := wire.Control(r.head[:])
	last := h.Last()
	switch r.op {
	case wire.OpWrite:
		q.tagged(last)
		q.written()
	case wire.OpReadResponse:
		q.tagged(last)
		q.response(last)
	case wire.OpReadRequest:
		r.msn[wire.QueueReadRequest]++
		u := wire.Untagged(r.head[:])
		*q.irq.push() = inbound{Read: requested(r.head[:]), msn: u.MSN()}
	case wire.OpTerminate:
		q.terminated(r.term[:max(wire.Untagged(r.head[:]).Len(), 0)])
		return
	case wire.OpSend, wire.OpSendInvalidate, wire.OpSendEvent, wire.OpSendEventInvalidate:
		if !q.sent(last) {
			return
		}
	}
	r.heard = true
	r.reset()
}

// tagged records where the tagged message in progress continues.
func (q *qp) tagged(last bool) {
	r := &q.rx
	h := wire.Tagged(r.head[:])
	switch n := h.Len(); {
	case last:
		r.inTag = false
	case n > 0:
		r.inTag, r.tagNone, r.tagOp, r.tagS, r.tagTO = true, false, r.op, h.STag(), h.TO()+uint64(n)
	case !r.inTag:
		r.inTag, r.tagNone, r.tagOp = true, true, r.op
	}
}

// written records which octets a segment of an RDMA Write has placed. Before the segment was
// complete and its CRC was good, none of them counted: a Send that came before the Write may be
// handled while the segment is half received.
func (q *qp) written() {
	h := wire.Tagged(q.rx.head[:])
	n := h.Len()
	if n == 0 {
		return
	}
	// The region is gone if the ULP has invalidated it since the payload was complete.
	if r := q.stags.find(h.STag()); r != nil {
		q.stags.wrote(r, uint32(h.TO()-r.to), uint32(n))
	}
}

// response counts a segment of a Response. The last one completes the Read.
func (q *qp) response(last bool) {
	rd := q.reads.at(0)
	rd.got += wire.Tagged(q.rx.head[:]).Len()
	if !last {
		return
	}
	q.readDone(nil)
}

// readDone completes the oldest Read.
func (q *qp) readDone(err error) {
	rd := q.reads.at(0)
	q.stags.dropSpan(rd.into)
	id, silent := rd.id, rd.silent
	*rd = readWR{}
	q.reads.pop()
	q.asked = max(q.asked-1, 0)
	if !silent {
		q.complete(id, fabric.OpRead, err)
	}
}

// sent counts a segment of a Send. The last one completes a Receive. It reports false
// when the message ended the connection.
func (q *qp) sent(last bool) bool {
	r := &q.rx
	if q.rtr() {
		r.msn[wire.QueueSend]++
		return true
	}
	h := wire.Untagged(r.head[:])
	r.sendN += h.Len()
	r.inSend, r.sendOp = !last, r.op
	if !last {
		return true
	}
	var inv, placed uint32
	if r.op.Invalidates() {
		// On delivery, "Invalidate the STag if it is associated with the RDMAP Stream;
		// or issue a Terminate Message". RFC 5040 Section 5.3. By now everything before the
		// Send was placed, and the ULP has not been told of the Send.
		inv = h.Invalidate()
		reg := q.stags.find(inv)
		if reg == nil {
			q.raise(fault{code: wire.CodeOpInvalidate, head: headDDP})
			return false
		}
		placed = reg.placed.run
		q.invalidate(inv)
	}
	c := q.receiveDone(r.sendN)
	c.Invalidated, c.Placed = fabric.Handle(inv), placed
	r.sendN = 0
	return true
}

// terminated handles the peer's Terminate.
func (q *qp) terminated(payload []byte) {
	e := &terminateError{Received: true, Raw: append([]byte(nil), payload...)}
	if t, err := wire.ParseTerminate(e.Raw); err == nil {
		e.Code = t.Code
	}
	q.end(stateError, e)
}
