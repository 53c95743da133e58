// Package rpcrdma implements the RPC-over-RDMA version 1 Transport header, RFC
// 8166 Section 4, and the private data of RFC 8797. It only encodes and decodes:
// package rdmaside decides what a list means for a Call.
//
// # Operation
//
// A [Header] is decoded into and encoded from. It is reused from one message to
// the next and keeps its storage, so that headers of usual size are encoded and
// decoded without allocating. Most messages have no chunks: [ParsePlain] and
// [AppendPlain] handle those without a Header.
//
// # Ownership
//
// Decode copies: a Header does not alias the octets that it was decoded from. Its
// lists alias storage inside the Header, so a Header must not be copied.
//
// # Errors
//
// Decode returns a [*HeaderError] with the answer that RFC 8166 Section 4.5
// requires of a Responder. A Requester always discards a header that it cannot
// decode.
package rpcrdma

import "encoding/binary"

// Version is the only version that this package speaks.
const Version = 1

// DefaultInline is the inline threshold, in octets, of a peer that has not
// announced another. RFC 8166 Section 3.3.3.
const DefaultInline = 1024

// Lengths of the parts of a Transport header in octets.
const (
	FixedLen       = 16                 // xid, version, credits, procedure
	PlainLen       = FixedLen + 12      // fixed part and three absent lists: the shortest RDMA_MSG
	SegmentLen     = 16                 // handle, length, offset
	ReadSegmentLen = 4 + 4 + SegmentLen // list discriminator, position, segment
	errChunkLen    = FixedLen + 4       // an RDMA_ERROR with ERR_CHUNK
	errVersLen     = FixedLen + 12      // an RDMA_ERROR with ERR_VERS and two versions
)

// A Proc is the rdma_proc field.
type Proc uint32

// The procedures of RFC 8166 Section 4.2.4.
const (
	Msg   Proc = 0 // RDMA_MSG: chunk lists, then the Payload stream
	NoMsg Proc = 1 // RDMA_NOMSG: chunk lists only
	MsgP  Proc = 2 // RDMA_MSGP: never sent; answered with ERR_CHUNK (Section 4.6.1)
	Done  Proc = 3 // RDMA_DONE: never sent; discarded (Section 4.6.2)
	Error Proc = 4 // RDMA_ERROR
)

// String returns the RFC's name.
func (p Proc) String() string {
	switch p {
	case Msg:
		return "RDMA_MSG"
	case NoMsg:
		return "RDMA_NOMSG"
	case MsgP:
		return "RDMA_MSGP"
	case Done:
		return "RDMA_DONE"
	case Error:
		return "RDMA_ERROR"
	}
	return "unknown procedure"
}

// An ErrCode is the rdma_err field of an RDMA_ERROR.
type ErrCode uint32

// The error codes of RFC 8166 Section 4.5.
const (
	ErrVers  ErrCode = 1 // the version is not supported; Low and High are the versions that are
	ErrChunk ErrCode = 2 // the header could not be decoded or obeyed
)

// String returns the RFC's name.
func (e ErrCode) String() string {
	switch e {
	case ErrVers:
		return "ERR_VERS"
	case ErrChunk:
		return "ERR_CHUNK"
	}
	return "unknown error"
}

// A Segment is an RDMA segment: a contiguous region of the Requester's memory.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Handle                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Length in octets                        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Offset (64 bits)                        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 8166 Section 3.4.3.
type Segment struct {
	Handle uint32
	Length uint32 // octets; 0 makes an empty segment
	Offset uint64 // opaque; adding to it, modulo 2^64, moves inside the segment
}

// A ReadSegment is a Segment of the Read list. Segments with the same Position
// make one Read chunk. RFC 8166 Section 3.4.5.
type ReadSegment struct {
	Position uint32 // in the unreduced Payload stream; a multiple of four
	Segment
}

// A WriteChunk is an entry of the Write list, or the Reply chunk. An empty Write
// chunk has no segments; it is not the same as an absent one: RFC 8166 Section
// 3.4.6.
type WriteChunk struct {
	Segments []Segment
}

// Length returns the sum of the lengths of the segments in octets.
func (w *WriteChunk) Length() uint64 {
	var n uint64
	for i := range w.Segments {
		n += uint64(w.Segments[i].Length)
	}
	return n
}

const (
	inlineReads    = 8
	inlineWrites   = 4
	inlineSegments = 16
)

// A Header is one Transport header.
//
//	xid - vers - credits - RDMA_MSG   - Read list - Write list - Reply chunk
//	xid - vers - credits - RDMA_NOMSG - Read list - Write list - Reply chunk
//	xid - vers - credits - RDMA_MSGP  - align - thresh - the three lists
//	xid - vers - credits - RDMA_DONE
//	xid - vers - credits - RDMA_ERROR - ERR_VERS - low - high
//	xid - vers - credits - RDMA_ERROR - ERR_CHUNK
//
// with, in the RFC's shorthand (P position, H handle, L length, OO offset,
// N number of segments),
//
//	Read list     1 - PHLOO - 1 - PHLOO - 0
//	Write list    1 - N - HLOO - HLOO - 1 - N - HLOO - 0
//	Reply chunk   1 - N - HLOO - HLOO, or 0
//
// The zero Header is ready for use. It must not be copied after first use.
type Header struct {
	_ noCopy

	XID     uint32
	Version uint32 // 1 in a valid message; Append writes it as it is
	Credits uint32 // requested in a Call, granted in a Reply
	Proc    Proc

	Align, Thresh uint32 // RDMA_MSGP only

	Reads  []ReadSegment
	Writes []WriteChunk
	Reply  *WriteChunk // nil when not present

	Err       ErrCode // RDMA_ERROR only
	Low, High uint32  // lowest and highest version that the peer speaks; ERR_VERS only

	// Storage of the lists. When a header needs more, the storage moves to the
	// heap and stays there. Decode bounds its size.
	segments []Segment
	reply    WriteChunk

	readArray    [inlineReads]ReadSegment
	writeArray   [inlineWrites]WriteChunk
	segmentArray [inlineSegments]Segment
}

type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Reset empties h for a message of version 1 with the given XID, credits and
// procedure. It keeps the storage.
func (h *Header) Reset(xid, credits uint32, p Proc) {
	h.XID, h.Version, h.Credits, h.Proc = xid, Version, credits, p
	h.Align, h.Thresh = 0, 0
	h.Err, h.Low, h.High = 0, 0, 0
	h.Reply = nil
	if h.segments == nil {
		h.Reads = h.readArray[:0]
		h.Writes = h.writeArray[:0]
		h.segments = h.segmentArray[:0]
		return
	}
	h.Reads, h.Writes, h.segments = h.Reads[:0], h.Writes[:0], h.segments[:0]
}

// AddRead appends one segment to the Read list.
func (h *Header) AddRead(position uint32, s Segment) {
	h.Reads = append(h.Reads, ReadSegment{position, s})
}

// AddWrite appends a Write chunk with a copy of the given segments and returns
// it. It is valid until the next AddWrite, Reset or Decode.
func (h *Header) AddWrite(segments ...Segment) *WriteChunk {
	h.Writes = append(h.Writes, WriteChunk{h.keep(segments)})
	return &h.Writes[len(h.Writes)-1]
}

// SetReply makes a Reply chunk of a copy of the given segments.
func (h *Header) SetReply(segments ...Segment) *WriteChunk {
	h.reply.Segments = h.keep(segments)
	h.Reply = &h.reply
	return h.Reply
}

// SetError makes h the RDMA_ERROR that answers a message with the given XID and
// version: "The rdma_vers field MUST contain the same version that was in the
// rdma_vers field in the failing request". RFC 8166 Section 4.5.
func (h *Header) SetError(xid, version, credits uint32, code ErrCode) {
	h.Reset(xid, credits, Error)
	h.Version = version
	h.Err = code
	if code == ErrVers {
		h.Low, h.High = Version, Version
	}
}

// keep appends a copy of segments to the storage. When the storage moves, chunks
// kept before still alias the old one.
func (h *Header) keep(segments []Segment) []Segment {
	n := len(h.segments)
	h.segments = append(h.segments, segments...)
	return h.segments[n:len(h.segments):len(h.segments)]
}

// ReadLength returns the sum of the lengths of the Read segments at position.
func (h *Header) ReadLength(position uint32) uint64 {
	var n uint64
	for i := range h.Reads {
		if h.Reads[i].Position == position {
			n += uint64(h.Reads[i].Length)
		}
	}
	return n
}

// Len returns how many octets Append appends.
func (h *Header) Len() int {
	switch h.Proc {
	case Done:
		return FixedLen
	case Error:
		if h.Err == ErrVers {
			return errVersLen
		}
		return errChunkLen
	}
	n := PlainLen + len(h.Reads)*ReadSegmentLen
	if h.Proc == MsgP {
		n += 8
	}
	for i := range h.Writes {
		n += 8 + len(h.Writes[i].Segments)*SegmentLen
	}
	if h.Reply != nil {
		n += 4 + len(h.Reply.Segments)*SegmentLen
	}
	return n
}

// Append appends the encoded header to b.
func (h *Header) Append(b []byte) []byte {
	if h.Proc == Msg && h.Version == Version && len(h.Reads)+len(h.Writes) == 0 && h.Reply == nil {
		return AppendPlain(b, h.XID, h.Credits)
	}
	b = appendFixed(b, h.XID, h.Version, h.Credits, h.Proc)
	switch h.Proc {
	case Done:
		return b
	case Error:
		b = append32(b, uint32(h.Err))
		if h.Err == ErrVers {
			b = append32(b, h.Low)
			b = append32(b, h.High)
		}
		return b
	case MsgP:
		b = append32(b, h.Align)
		b = append32(b, h.Thresh)
	}
	b = appendReads(b, h.Reads)
	b = appendWrites(b, h.Writes)
	if h.Reply == nil {
		return append32(b, 0)
	}
	b = append32(b, 1)
	return appendChunk(b, h.Reply.Segments)
}

// appendReads encodes the Read list: 1 - PHLOO - 1 - PHLOO - 0.
func appendReads(b []byte, reads []ReadSegment) []byte {
	for i := range reads {
		b = append32(b, 1)
		b = append32(b, reads[i].Position)
		b = appendSegment(b, &reads[i].Segment)
	}
	return append32(b, 0)
}

// appendWrites encodes the Write list: 1 - N - HLOO - 1 - N - HLOO - 0.
func appendWrites(b []byte, writes []WriteChunk) []byte {
	for i := range writes {
		b = append32(b, 1)
		b = appendChunk(b, writes[i].Segments)
	}
	return append32(b, 0)
}

// appendChunk encodes a counted array: N - HLOO - HLOO.
func appendChunk(b []byte, segments []Segment) []byte {
	b = append32(b, uint32(len(segments)))
	for i := range segments {
		b = appendSegment(b, &segments[i])
	}
	return b
}

func appendSegment(b []byte, s *Segment) []byte {
	b = append32(b, s.Handle)
	b = append32(b, s.Length)
	return binary.BigEndian.AppendUint64(b, s.Offset)
}

func appendFixed(b []byte, xid, version, credits uint32, p Proc) []byte {
	b = append32(b, xid)
	b = append32(b, version)
	b = append32(b, credits)
	return append32(b, uint32(p))
}

func append32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
