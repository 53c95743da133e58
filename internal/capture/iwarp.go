package capture

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// startup reads the MPA start-up frames of both directions. It reports whether it found one,
// which tells that the connection carries iWARP.
func (c *Conn) startup() bool {
	found := false
	for i := range c.Streams {
		s := &c.Streams[i]
		if !s.started || len(s.pieces) == 0 {
			continue
		}
		r := s.reader()
		b := r.peek(wire.FrameLen+wire.MaxPrivate, &span{})
		f, n, err := wire.ParseFrameHeader(b)
		if err != nil || len(b) < wire.FrameLen+n || f.ParsePrivate(b[wire.FrameLen:wire.FrameLen+n]) != nil {
			continue
		}
		c.MPA[i] = &f
		found = true
	}
	return found
}

// Inline returns the inline threshold of messages on the Stream with this index, in
// octets. It follows from the private data of both sides, RFC 8797. ok is
// false when the start of the connection was not captured.
func (c *Conn) Inline(stream int) (octets int, ok bool) {
	if c.MPA[0] == nil || c.MPA[1] == nil {
		return 0, false
	}
	from, _ := rpcrdma.FindPrivateData(c.MPA[stream].Private)
	to, _ := rpcrdma.FindPrivateData(c.MPA[1-stream].Private)
	return rpcrdma.Inline(from, to), true
}

// An event is an FPDU that moves data, a Read Request, or a Send at the FPDU that completes it.
type event struct {
	stream int
	where  span
	offset int64
	data   []byte // the header from ULPDU_Length on, and the captured part of the payload
	send   *Message
	crc    crcState
}

// A crcState is the result of checking the CRC of an FPDU.
type crcState uint8

const (
	crcUnknown crcState = iota // CRCs are off, or the CRC was not captured
	crcGood
	crcBad
)

// sends finds the Sends of an iWARP connection and the data that moved in their chunks.
// When the start of the connection was not captured, it searches for FPDUs where packets
// begin.
func (c *Conn) sends() []Message {
	var events []event
	for i := range c.Streams {
		events = append(events, c.fpdus(i)...)
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.where.last, b.where.last), cmp.Compare(a.offset, b.offset))
	})
	return newTransfers().run(events)
}

// fpduReader returns a reader at the first FPDU of a direction. crc reports whether FPDUs have
// CRCs. inStep reports whether an FPDU begins at the reader's position: it is false when the
// start of the connection was not captured.
func (c *Conn) fpduReader(i int) (r *reader, inStep, crc bool) {
	at := c.Streams[i].reader()
	r = &at
	own, peer := c.MPA[i], c.MPA[1-i]
	if own == nil {
		return r, false, true
	}
	r.seek(int64(wire.FrameLen + len(own.Private)))
	if own.Flags&wire.FlagEnhanced != 0 && own.Revision >= 2 {
		r.seek(r.pos + wire.EnhancedLen)
	}
	r.base = r.pos
	if peer == nil {
		return r, true, true
	}
	// Each side says whether it wants Markers in what it receives.
	r.marked = peer.Flags&wire.FlagMarkers != 0
	return r, true, (own.Flags|peer.Flags)&wire.FlagCRC != 0
}

// fpdus cuts one direction into FPDUs. RFC 5044 Section 4.1.
func (c *Conn) fpdus(i int) []event {
	r, inStep, crc := c.fpduReader(i)
	var all []event
	sends := make(map[uint32]*Message) // Sends whose last DDP Segment has not been read, by MSN
	resync := false
	for !r.done() {
		if r.missing() {
			r.hole()
			inStep = false
		}
		if !inStep {
			if resync = true; !r.searchFPDU() {
				break
			}
		}
		e := event{stream: i, offset: r.pos}
		n, ok := r.fpdu(&e, crc)
		if !ok {
			inStep = false
			r.seek(r.pos + 1)
			continue
		}
		inStep = true
		if len(e.data) < wire.ControlLen {
			continue
		}
		ctl := wire.Control(e.data)
		switch op := ctl.Opcode(); {
		case op.Tagged(), op == wire.OpReadRequest:
			if len(e.data) >= op.HeaderLen() {
				all = append(all, e)
			}
		case op == wire.OpTerminate:
		default:
			if m := c.segment(sends, &c.Streams[i], &e, n, resync); m != nil {
				e.send = m
				all = append(all, e)
			}
			resync = false
		}
	}
	return append(all, unfinished(i, sends)...)
}

// unfinished returns the Sends whose last DDP Segment was not captured, in the order in
// which they begin.
func unfinished(i int, sends map[uint32]*Message) (rest []event) {
	for _, m := range sends {
		m.Missing++
		m.Length++
		rest = append(rest, event{stream: i, where: span{first: m.First, last: m.Last}, offset: m.Offset, send: m})
	}
	slices.SortFunc(rest, func(a, b event) int { return cmp.Compare(a.offset, b.offset) })
	return rest
}

// fpdu reads one FPDU, or the captured part of it, and returns the length of its
// ULPDU. ok is false when no FPDU can begin at the position.
func (r *reader) fpdu(e *event, crc bool) (ulpdu int64, ok bool) {
	start := *r
	b := r.take(wire.ControlLen, &e.where)
	if len(b) < wire.ControlLen || !plausibleControl(wire.Control(b)) {
		*r = start
		return 0, false
	}
	ulpdu = int64(wire.Control(b).ULPDULen())
	*r = start
	e.data = r.take(2+ulpdu, &e.where)
	r.take(int64(wire.Pad(int(ulpdu))), &span{})
	r.mark()
	covered := start.peek(r.pos-start.pos, &span{})
	sum := r.take(wire.CRCLen, &span{})
	// Accept an FPDU whose CRC is wrong: siw computes some CRCs incorrectly.
	if crc && len(sum) == wire.CRCLen && int64(len(covered)) == r.pos-wire.CRCLen-start.pos {
		if e.crc = crcGood; wire.CRC(sum) != wire.Checksum(covered) {
			e.crc = crcBad
		}
	}
	return ulpdu, true
}

// searchFPDU moves to the next FPDU at the beginning of a packet. Most FPDUs begin at the start
// of a packet.
func (r *reader) searchFPDU() bool {
	for ; !r.done(); r.seek(r.s.pieces[r.i].end()) {
		if p := &r.s.pieces[r.i]; r.pos > p.off {
			continue
		}
		r.hole()
		if r.plausibleFPDU() {
			return true
		}
	}
	return false
}

// plausibleFPDU reports whether an FPDU very likely begins at the position: its CRC is
// right, or it is a Send on queue 0 whose payload begins with a Transport header.
func (r *reader) plausibleFPDU() bool {
	var e event
	at := *r
	if _, ok := at.fpdu(&e, true); !ok {
		return false
	}
	u := wire.Untagged(e.data)
	if op := u.Control().Opcode(); !op.Tagged() && op.Queue() == wire.QueueSend && len(e.data) >= wire.UntaggedLen+rpcrdma.FixedLen {
		return u.QN() == wire.QueueSend && u.MO() == 0 && transport(e.data[wire.UntaggedLen:])
	}
	return e.crc == crcGood
}

// transport reports whether b looks like a Transport header. b must have FixedLen octets
// or more.
func transport(b []byte) bool {
	return binary.BigEndian.Uint32(b[4:]) == rpcrdma.Version && binary.BigEndian.Uint32(b[12:]) <= uint32(rpcrdma.Error)
}

// segment adds the untagged DDP Segment e, whose ULPDU has n octets, to the message of its
// Send. It returns the message if the segment is the last one.
func (c *Conn) segment(sends map[uint32]*Message, s *Stream, e *event, n int64, resync bool) *Message {
	if len(e.data) < wire.UntaggedLen {
		return nil
	}
	u := wire.Untagged(e.data)
	if u.QN() != wire.QueueSend {
		return nil
	}
	m := sends[u.MSN()]
	if u.MO() == 0 {
		m = &Message{Conn: c, Stream: s, Offset: e.offset, Resynchronised: resync, RDMA: new(RDMA)}
		m.found(e.where)
		sends[u.MSN()] = m
	}
	if m == nil {
		return nil // the beginning of the Send was not captured
	}
	payload := e.data[wire.UntaggedLen:]
	length := n + 2 - wire.UntaggedLen
	switch {
	case int64(u.MO()) != m.Length:
		m.Wrong = "a DDP Segment of the message is missing or out of order"
		m.Missing++
	case m.Missing == 0 && m.Data == nil:
		m.Data = payload[:len(payload):len(payload)]
	case m.Missing == 0:
		m.Data = append(m.Data, payload...)
	}
	m.Missing += length - int64(len(payload))
	m.Length += length
	m.Fragments++
	m.Last = max(m.Last, e.where.last)
	m.BadCRC = m.BadCRC || e.crc == crcBad
	if op := u.Control().Opcode(); op.Invalidates() {
		m.RDMA.Invalidate, m.RDMA.HasInvalidate = u.Invalidate(), true
	}
	if !u.Control().Last() {
		return nil
	}
	delete(sends, u.MSN())
	return m
}

// plausibleControl reports whether b can be the start of an FPDU.
func plausibleControl(b wire.Control) bool {
	op := b.Opcode()
	return b.DDPVersion() == wire.DDPVersion && b.RDMAPVersion() == wire.RDMAPVersion && op.Known() &&
		b.Tagged() == op.Tagged() && b.ULPDULen()+2 >= op.HeaderLen()
}
