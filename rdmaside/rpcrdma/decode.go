package rpcrdma

import "encoding/binary"

// Decode accepts no more than these entries of lists, however long the message
// is. The Linux server accepts 259 segments for a payload of 1 MiB in pages, and
// these are twice that; a header of 16 KiB can hold them.
const (
	maxReads    = 512  // segments of the Read list
	maxWrites   = 64   // chunks of the Write list
	maxSegments = 512  // segments of one Write or Reply chunk
	maxTotal    = 1024 // segments of all lists together
)

// Decode fills h from the message b and returns the length of the header in
// octets: the Payload stream of an RDMA_MSG is b[n:]. It does not retain b.
//
// The error is a *HeaderError. Then h holds only the fixed fields that could be
// read. RDMA_MSGP and RDMA_DONE decode without an error, although no peer may
// send them: a Requester and a Responder react to them differently, so the caller
// must (RFC 8166 Section 4.6).
func (h *Header) Decode(b []byte) (n int, err error) {
	d := decoder{b: b, h: h}
	h.Reset(0, 0, Msg)
	if len(b) < FixedLen {
		h.Version = 0
		return 0, d.fail("length", Silence, errShort)
	}
	h.XID = binary.BigEndian.Uint32(b)
	h.Version = binary.BigEndian.Uint32(b[4:])
	h.Credits = binary.BigEndian.Uint32(b[8:])
	h.Proc = Proc(binary.BigEndian.Uint32(b[12:]))
	d.pos = FixedLen

	if h.Proc == Error {
		return d.rdmaError()
	}
	if h.Proc == Done && h.Version == Version {
		return d.pos, nil
	}
	// "If an incoming RPC-over-RDMA message is not as long as a minimal size
	// RPC-over-RDMA header (28 bytes), the receiver cannot trust the value of the
	// XID field; therefore, it MUST silently discard the message before
	// performing any parsing." RFC 8166 Section 4.5. Only the two procedures
	// above may be shorter.
	if len(b) < PlainLen {
		return 0, d.fail("length", Silence, errShort)
	}
	if h.Version != Version {
		return 0, d.fail("rdma_vers", AnswerErrVers, errVersion)
	}
	switch h.Proc {
	case Msg, NoMsg:
	case MsgP:
		var ok1, ok2 bool
		h.Align, ok1 = d.uint32()
		h.Thresh, ok2 = d.uint32()
		if !ok1 || !ok2 {
			return 0, d.fail("rdma_align", AnswerErrChunk, errShort)
		}
	default:
		return 0, d.fail("rdma_proc", AnswerErrChunk, errProcedure)
	}
	return d.lists()
}

// A decoder decodes one message.
type decoder struct {
	b     []byte
	pos   int
	h     *Header
	total int // segments decoded so far
}

func (d *decoder) fail(field string, a Answer, err error) error {
	h := d.h
	e := &HeaderError{XID: h.XID, Version: h.Version, Field: field, Answer: a, Err: err}
	h.Reads, h.Writes, h.Reply, h.segments = h.Reads[:0], h.Writes[:0], nil, h.segments[:0]
	return e
}

// rdmaError decodes the rest of an RDMA_ERROR. "A receiver MUST silently discard
// an RDMA_ERROR procedure that it cannot decode." RFC 8166 Section 4.5.
func (d *decoder) rdmaError() (int, error) {
	h := d.h
	if h.Version != Version {
		return 0, d.fail("rdma_vers", Silence, errVersion)
	}
	code, ok := d.uint32()
	if !ok {
		return 0, d.fail("rdma_err", Silence, errShort)
	}
	h.Err = ErrCode(code)
	switch h.Err {
	case ErrChunk:
		return d.pos, nil
	case ErrVers:
		var ok1, ok2 bool
		h.Low, ok1 = d.uint32()
		h.High, ok2 = d.uint32()
		if !ok1 || !ok2 {
			return 0, d.fail("rdma_vers_low", Silence, errShort)
		}
		return d.pos, nil
	}
	return 0, d.fail("rdma_err", Silence, errUnknownCode)
}

// lists decodes the Read list, the Write list and the Reply chunk.
func (d *decoder) lists() (int, error) {
	h := d.h
	if err := d.reads(); err != nil {
		return 0, d.fail("rdma_reads", AnswerErrChunk, err)
	}
	if err := d.writes(); err != nil {
		return 0, d.fail("rdma_writes", AnswerErrChunk, err)
	}
	present, err := d.present()
	if err == nil && present {
		h.reply.Segments, err = d.chunk()
		h.Reply = &h.reply
	}
	if err != nil {
		return 0, d.fail("rdma_reply", AnswerErrChunk, err)
	}
	// "Examples of such errors include [...] an RDMA_NOMSG message where the Read
	// list, Write list, and Reply chunk are marked not present". Section 4.5.2.
	if h.Proc == NoMsg && len(h.Reads) == 0 && len(h.Writes) == 0 && h.Reply == nil {
		return 0, d.fail("rdma_proc", AnswerErrChunk, errNoChunks)
	}
	return d.pos, nil
}

func (d *decoder) reads() error {
	h := d.h
	for {
		present, err := d.present()
		if err != nil || !present {
			return err
		}
		if len(h.Reads) >= maxReads {
			return errTooMany
		}
		if len(d.b)-d.pos < ReadSegmentLen-4 {
			return errShort
		}
		position := binary.BigEndian.Uint32(d.b[d.pos:])
		// "The value in this field MUST be a multiple of four." Section 3.4.5.
		if position%4 != 0 {
			return errPosition
		}
		d.pos += 4
		h.Reads = append(h.Reads, ReadSegment{position, d.segment()})
		d.total++
	}
}

func (d *decoder) writes() error {
	h := d.h
	for {
		present, err := d.present()
		if err != nil || !present {
			return err
		}
		if len(h.Writes) >= maxWrites {
			return errTooMany
		}
		segments, err := d.chunk()
		if err != nil {
			return err
		}
		h.Writes = append(h.Writes, WriteChunk{segments})
	}
}

// chunk decodes a counted array of segments.
func (d *decoder) chunk() ([]Segment, error) {
	h := d.h
	count, ok := d.uint32()
	if !ok {
		return nil, errShort
	}
	// The count is off the wire: compare it with the octets left, then with the
	// limits, before it sizes anything.
	if uint64(count)*SegmentLen > uint64(len(d.b)-d.pos) {
		return nil, errShort
	}
	n := int(count)
	if n > maxSegments || d.total+n > maxTotal {
		return nil, errTooMany
	}
	d.total += n
	start := len(h.segments)
	for range n {
		h.segments = append(h.segments, d.segment())
	}
	return h.segments[start:len(h.segments):len(h.segments)], nil
}

// segment decodes a segment. The caller has checked that there is one.
func (d *decoder) segment() Segment {
	b := d.b[d.pos : d.pos+SegmentLen]
	d.pos += SegmentLen
	return Segment{
		Handle: binary.BigEndian.Uint32(b),
		Length: binary.BigEndian.Uint32(b[4:]),
		Offset: binary.BigEndian.Uint64(b[8:]),
	}
}

// present decodes the discriminator of an optional-data item.
func (d *decoder) present() (bool, error) {
	v, ok := d.uint32()
	switch {
	case !ok:
		return false, errShort
	case v > 1:
		return false, errBoolean
	}
	return v == 1, nil
}

func (d *decoder) uint32() (uint32, bool) {
	if len(d.b)-d.pos < 4 {
		return 0, false
	}
	v := binary.BigEndian.Uint32(d.b[d.pos:])
	d.pos += 4
	return v, true
}
