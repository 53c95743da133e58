package iwarp

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
)

// The send path. Messages are sent one after the other, for two reasons: Linux siw
// terminates the connection when segments of two tagged messages mix, and Sends must keep
// their order with the Writes before them. At each boundary between messages the next
// one is chosen in this order:
//
//	Terminate        alone, and last
//	Read Requests    as far as ORD allows; they are small
//	own / Responses  in turns of turnBudget octets while both wait
//
// One batch of output is built at a time, when the batch before is wholly written. That
// bounds the memory that output refers to, and the region of a Response is checked again
// shortly before its octets are sent.

const (
	// copyBelow is the payload length below which copying the payload next to its header
	// is cheaper than a slice of its own: measured, three times cheaper at 1450 octets.
	copyBelow = 4096
	// pieceBelow is the same bound for a piece of the payload of a longer FPDU.
	pieceBelow = 512
	// pieceOctets bounds the octets of small pieces in one FPDU. An FPDU that would need
	// more is made shorter.
	pieceOctets = 8 << 10
	// pieceCount bounds the number of large pieces in one FPDU, likewise.
	pieceCount = 200

	// turnBudget is how many octets own messages, or Responses, may send while the
	// others wait.
	turnBudget = 256 << 10
)

type txMessage uint8

const (
	txNone txMessage = iota
	txOwn
	txResponse
)

type tx struct {
	batch  *batch
	open   bool // batch is still being built, and was not lent by output
	crc    bool
	marked bool
	marks  wire.Markers
	body   []byte // scratch for an FPDU that gets Markers
	head   [wire.MaxHeaderLen]byte

	maxTagged, maxUntagged int // payload octets of one segment

	built   uint64 // stream position behind the last FPDU built
	written uint64 // stream position up to which the kernel has the octets

	// The message in progress.
	cur       txMessage
	done      int       // octets of it that are in FPDUs
	part, off int       // its next octet is parts[part][off]
	one       [1][]byte // parts of a Response or a Terminate

	responses bool // it is the Responses' turn
	spent     int  // octets sent in this turn

	copied int // octets of payload copied, for the Provider

	msn  [3]uint32 // next MSN, by queue
	kick bool      // send a zero-length Write
	wait bool      // qpConfig.hold: send nothing before the peer's first FPDU

	term     [wire.MaxTerminate]byte
	termLen  int
	termSent bool // the Terminate is in a batch
}

func (t *tx) init(cfg qpConfig) {
	t.crc, t.marked, t.wait = cfg.crc, cfg.markers, cfg.hold
	t.msn = [3]uint32{1, 1, 1}
	t.mulpdu(wire.MaxSendULPDU)
}

// mulpdu sets the length of the longest ULPDU to n. Payload lengths are multiples of
// four, so that only last segments need a pad.
func (t *tx) mulpdu(n int) {
	t.maxTagged = (n + 2 - wire.TaggedLen) &^ 3
	t.maxUntagged = (n + 2 - wire.UntaggedLen) &^ 3
}

// setMSS makes FPDUs fit TCP segments of emss octets. With 0 FPDUs have the maximum
// length.
func (q *qp) setMSS(emss int) {
	n := wire.MaxSendULPDU
	if emss > 0 {
		n = wire.MULPDU(emss, q.tx.marked)
	}
	q.tx.mulpdu(n)
}

// output returns the slices to write next, if any. The caller reports to wrote how many
// octets were written; until then the slices do not change.
func (q *qp) output() [][]byte {
	t := &q.tx
	if t.batch != nil && !t.open {
		return t.batch.rest()
	}
	switch q.state {
	case stateRTS, stateClosing:
		if t.wait && !q.rx.heard || q.fin {
			return nil
		}
		if !t.open && !q.sendable() {
			return nil
		}
	case stateTerminate:
		if t.termSent {
			return nil
		}
	case stateIdle, stateError:
		return nil
	}
	b := t.batch
	if b == nil {
		b = q.cfg.pool.get()
	}
	t.batch, t.open = b, false
	if q.state == stateTerminate {
		q.buildTerminate(b)
	} else {
		for q.buildFPDU(b) {
		}
	}
	if t.batch == nil {
		// The region of a Response was invalidated. That ended the connection and put
		// b back.
		return q.output()
	}
	b.flushLin()
	if b.size == 0 {
		q.drop()
		return nil
	}
	return b.rest()
}

// sendable reports whether there is anything to build.
func (q *qp) sendable() bool {
	return q.tx.cur != txNone || q.tx.kick || q.askable() || q.wq.len() > q.built || q.irq.len() > 0
}

// askable reports whether a Read Request may be sent.
func (q *qp) askable() bool { return q.reads.len() > q.asked && q.asked < q.cfg.ord }

// drained reports whether all posted work and all Responses have been written, and all
// Reads have completed.
func (q *qp) drained() bool {
	return q.tx.batch == nil && q.wq.len() == 0 && q.reads.len() == 0 && q.irq.len() == 0
}

// wrote records that the kernel has accepted n octets of output.
func (q *qp) wrote(n int) {
	t := &q.tx
	if t.batch == nil {
		return
	}
	t.written += uint64(n)
	done := t.batch.wrote(n)
	for q.built > 0 && q.wq.at(0).end <= t.written {
		q.sendDone(nil)
		q.built--
	}
	switch {
	case done:
		q.cfg.pool.put(t.batch)
		t.batch = nil
	default:
		t.batch = q.cfg.pool.settle(t.batch)
	}
}

// sendDone completes the oldest Send or Write.
func (q *qp) sendDone(err error) {
	w := q.wq.at(0)
	id, op := w.id, fabric.OpSend
	if w.op == wire.OpWrite {
		op = fabric.OpWrite
	}
	for i := len(w.parts) - 1; i >= 0; i-- { // two, mostly, for which clear takes twice as long
		w.parts[i] = nil
	}
	w.parts = w.parts[:0]
	q.wq.pop()
	q.complete(id, op, err)
}

// buildShort builds the FPDU of a Send of n octets, if that is short and nothing is to be sent before it. Otherwise it
// reports false, and the Send waits for output. Building it now saves half of the work: nobody has to remember its parts.
func (q *qp) buildShort(op wire.Opcode, stag uint32, parts [][]byte, n int) bool {
	t := &q.tx
	if n >= copyBelow || n > t.maxUntagged || q.state != stateRTS || t.marked ||
		t.cur != txNone || t.kick || t.wait && !q.rx.heard || q.wq.len() != q.built || q.irq.len() > 0 || q.askable() {
		return false
	}
	if !t.open {
		if t.batch != nil {
			return false
		}
		if t.batch = q.cfg.pool.getOpen(); t.batch == nil {
			return false
		}
		t.open = true
	}
	b, length := t.batch, wire.FPDULen(wire.UntaggedLen+n-2)
	if !b.room(length, 1) {
		return false
	}
	start := len(b.lin)
	lin := b.lin[:start+wire.UntaggedLen]
	wire.PutUntagged(lin[start:], op, true, stag, t.msn[wire.QueueSend], 0, n)
	for _, p := range parts {
		lin = append(lin, p...)
	}
	end := length - wire.CRCLen
	b.lin = lin[:start+length]
	fpdu := b.lin[start:]
	for at := wire.UntaggedLen + n; at < end; at++ {
		fpdu[at] = 0 // pad
	}
	crc := uint32(0)
	if t.crc {
		crc = wire.Checksum(fpdu[:end])
	}
	wire.PutCRC(fpdu[end:], crc)
	b.end()
	t.built += uint64(length)
	t.copied += n
	t.msn[wire.QueueSend]++
	return true
}

// buildFPDU adds the next FPDU to b. It reports false when there is none, or no
// room for it.
func (q *qp) buildFPDU(b *batch) bool {
	t := &q.tx
	if t.cur == txNone {
		switch {
		case t.kick:
			if !q.emit(b, wire.AppendTagged(nil, wire.OpWrite, true, 1, 0, 0), nil, 0) {
				return false
			}
			t.kick = false
			return true
		case q.askable():
			return q.buildRequest(b)
		case !q.choose():
			return false
		}
	}
	if t.cur == txResponse {
		return q.buildResponse(b)
	}
	return q.buildOwn(b)
}

// choose begins a message, own or Response.
func (q *qp) choose() bool {
	t := &q.tx
	own, resp := q.wq.len() > q.built, q.irq.len() > 0
	switch {
	case own && resp:
		if t.spent >= turnBudget {
			t.responses, t.spent = !t.responses, 0
		}
		if t.responses {
			own = false
		}
	case !own && !resp:
		return false
	}
	t.cur = txResponse
	if own {
		t.cur = txOwn
	}
	t.done, t.part, t.off = 0, 0, 0
	return true
}

// over ends the message in progress, which has n octets.
func (t *tx) over(n int) {
	t.cur = txNone
	t.spent += n
	t.one[0] = nil
}

func (q *qp) buildRequest(b *batch) bool {
	rd := q.reads.at(q.asked)
	if !q.emit(b, wire.AppendReadRequest(q.tx.head[:0], q.tx.msn[wire.QueueReadRequest], rd.req), nil, 0) {
		return false
	}
	q.tx.msn[wire.QueueReadRequest]++
	q.asked++
	return true
}

func (q *qp) buildOwn(b *batch) bool {
	t := &q.tx
	w := q.wq.at(q.built)
	most := t.maxUntagged
	if w.op == wire.OpWrite {
		most = t.maxTagged
	}
	left := w.len - t.done
	n := t.gather(w.parts, min(left, most))
	last := n == left
	var head []byte
	if w.op == wire.OpWrite {
		head = wire.AppendTagged(t.head[:0], w.op, last, w.stag, w.to+uint64(t.done), n)
	} else {
		head = wire.AppendUntagged(t.head[:0], w.op, last, w.stag, t.msn[wire.QueueSend], uint32(t.done), n)
	}
	if !q.emit(b, head, w.parts, n) {
		return false
	}
	t.done += n
	if last {
		if w.op != wire.OpWrite {
			t.msn[wire.QueueSend]++
		}
		w.end = t.built
		q.built++
		t.over(w.len)
	}
	return true
}

// buildResponse adds a segment of the Response to the oldest inbound Read. It looks up
// the region for each segment, because the ULP may have invalidated it since.
func (q *qp) buildResponse(b *batch) bool {
	t := &q.tx
	in := q.irq.at(0)
	src, c := q.source(in.SrcSTag, in.SrcTO+uint64(in.done), in.Size-in.done)
	if c != (wire.Code{}) {
		q.raiseRead(c, in)
		return false
	}
	n := min(len(src), t.maxTagged)
	last := n == len(src)
	t.one[0], t.part, t.off = src, 0, 0
	head := wire.AppendTagged(t.head[:0], wire.OpReadResponse, last, in.SinkSTag, in.SinkTO+uint64(in.done), n)
	if !q.emit(b, head, t.one[:], n) {
		return false
	}
	in.done += uint32(n)
	if last {
		t.over(int(in.Size))
		*in = inbound{}
		q.irq.pop()
	}
	return true
}

// gather returns how many of the next n octets of parts fit into one FPDU. All n fit unless
// they are in very many pieces.
func (t *tx) gather(parts [][]byte, n int) int {
	if n < copyBelow {
		return n
	}
	big, small, got := 0, 0, 0
	part, off := t.part, t.off
	for got < n {
		k := min(len(parts[part])-off, n-got)
		part, off = part+1, 0
		if k < pieceBelow {
			small += k
		} else {
			big++
		}
		if small > pieceOctets || big > pieceCount {
			break
		}
		got += k
	}
	return got
}

// emit adds an FPDU with the header head and the next n octets of parts, and advances
// past them. When b has no room it does nothing and reports false.
func (q *qp) emit(b *batch, head []byte, parts [][]byte, n int) bool {
	t := &q.tx
	length := len(head) + n
	pad := -length & 3
	linear := length + pad + wire.CRCLen
	if t.marked {
		linear = wire.MarkedLen(linear)
	} else if n >= copyBelow {
		linear = len(head) + pieceOctets + pad + wire.CRCLen
	}
	if !b.room(linear, 2*pieceCount+2) {
		return false
	}
	if t.marked {
		t.emitMarked(b, head, parts, n, pad)
		return true
	}
	start := len(b.lin)
	b.lin = append(b.lin, head...)
	if n < copyBelow {
		b.lin = t.appendParts(b.lin, parts, n)
		t.endShort(b, start, pad)
		return true
	}
	crc := uint32(0)
	if t.crc {
		crc = wire.Update(0, head)
	}
	for n > 0 {
		p := t.next(parts, n)
		n -= len(p)
		if t.crc {
			crc = wire.Update(crc, p)
		}
		if len(p) < pieceBelow {
			b.lin = append(b.lin, p...)
			t.copied += len(p)
		} else {
			b.refer(p)
		}
	}
	b.lin = append(b.lin, zeros[:pad]...)
	if t.crc {
		crc = wire.Update(crc, zeros[:pad])
	}
	b.lin = wire.AppendCRC(b.lin, crc)
	b.end()
	t.built += uint64(length + pad + wire.CRCLen)
	return true
}

// endShort adds the pad and the CRC to the FPDU that begins at b.lin[start], all of which is in b.lin.
func (t *tx) endShort(b *batch, start, pad int) {
	b.lin = binary.LittleEndian.AppendUint32(b.lin, 0)[:len(b.lin)+pad]
	crc := uint32(0)
	if t.crc {
		crc = wire.Checksum(b.lin[start:])
	}
	b.lin = wire.AppendCRC(b.lin, crc)
	b.end()
	t.built += uint64(len(b.lin) - start)
}

var zeros [4]byte

// emitMarked does what emit does, for a peer that wants Markers. It copies the payload.
func (t *tx) emitMarked(b *batch, head []byte, parts [][]byte, n, pad int) {
	t.body = append(t.body[:0], head...)
	t.body = t.appendParts(t.body, parts, n)
	t.body = append(t.body, zeros[:pad]...)
	start := len(b.lin)
	b.lin = t.marks.Append(b.lin, t.body, t.crc)
	b.end()
	t.built += uint64(len(b.lin) - start)
}

// appendParts copies the next n octets of parts.
func (t *tx) appendParts(b []byte, parts [][]byte, n int) []byte {
	for n > 0 {
		p := t.next(parts, n)
		b = append(b, p...)
		t.copied += len(p)
		n -= len(p)
	}
	return b
}

// next returns the next piece of parts, at most n octets, and advances past it.
func (t *tx) next(parts [][]byte, n int) []byte {
	for {
		p := parts[t.part][t.off:]
		if len(p) > n {
			t.off += n
			return p[:n]
		}
		t.part, t.off = t.part+1, 0
		if len(p) > 0 {
			return p
		}
	}
}

// rtrFrame builds the first FPDU of a peer-to-peer Initiator, which is written before
// the qp is started. RFC 6581 Section 9.2.
func (q *qp) rtrFrame(read bool) []byte {
	b := newBatch()
	if read {
		*q.reads.push() = readWR{silent: true, req: wire.Read{SinkSTag: q.stags.mint(), SinkTO: q.stags.base()}}
		q.buildRequest(b)
	} else {
		q.emit(b, wire.AppendTagged(nil, wire.OpWrite, true, 1, 0, 0), nil, 0)
	}
	q.tx.written = q.tx.built
	return b.lin
}

func (q *qp) buildTerminate(b *batch) {
	t := &q.tx
	h := wire.AppendUntagged(nil, wire.OpTerminate, true, 0, 1, 0, t.termLen)
	t.cur, t.part, t.off = txNone, 0, 0
	t.one[0] = t.term[:t.termLen]
	q.emit(b, h, t.one[:], t.termLen)
	t.termSent = true
}
