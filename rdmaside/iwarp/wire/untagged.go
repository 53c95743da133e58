package wire

import (
	"encoding/binary"
	"slices"
)

// An Untagged is the FPDU header before an untagged DDP Segment, viewed in place.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         ULPDU_Length          |T|L| Rsvd  | DV| RV|Rsv| Opcode|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Invalidate STag                        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              QN                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              MSN                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              MO                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5041 Section 4.3, RFC 5040 Section 4.1. The caller checks len(b) >=
// UntaggedLen once; accessors do not.
type Untagged []byte

// Control views the start of the header.
func (b Untagged) Control() Control { return Control(b) }

// Invalidate is the STag to invalidate, for opcodes that have one.
func (b Untagged) Invalidate() uint32 { return binary.BigEndian.Uint32(b[4:]) }

// QN is the queue number.
func (b Untagged) QN() uint32 { return binary.BigEndian.Uint32(b[8:]) }

// MSN is the message sequence number. It starts at 1 in each queue and direction.
func (b Untagged) MSN() uint32 { return binary.BigEndian.Uint32(b[12:]) }

// MO is the offset of the payload in its message.
func (b Untagged) MO() uint32 { return binary.BigEndian.Uint32(b[16:]) }

// Len is the number of payload octets; negative when the ULPDU is too short for
// its header.
func (b Untagged) Len() int { return b.Control().ULPDULen() + 2 - UntaggedLen }

// AppendUntagged appends the header of a segment with n octets of payload. The
// queue is op's.
func AppendUntagged(b []byte, op Opcode, last bool, invalidate, msn, mo uint32, n int) []byte {
	at := len(b)
	b = slices.Grow(b, UntaggedLen)[:at+UntaggedLen] // built in place: to append an array calls memmove
	PutUntagged(b[at:], op, last, invalidate, msn, mo, n)
	return b
}

// PutUntagged writes what AppendUntagged appends to the front of h.
func PutUntagged(h []byte, op Opcode, last bool, invalidate, msn, mo uint32, n int) {
	h = h[:UntaggedLen]
	putControl(h, n+UntaggedLen-2, op, last)
	binary.BigEndian.PutUint32(h[4:], invalidate)
	binary.BigEndian.PutUint32(h[8:], op.Queue())
	binary.BigEndian.PutUint32(h[12:], msn)
	binary.BigEndian.PutUint32(h[16:], mo)
}

// A ReadRequest is the FPDU header of a Read Request, RDMAP header included.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|              Untagged header (20 octets), QN 1, MO 0          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Data Sink STag (SinkSTag)                 |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|              Data Sink Tagged Offset (SinkTO, 64 bits)        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|              RDMA Read Message Size (RDMARDSZ)                |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Data Source STag (SrcSTag)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|             Data Source Tagged Offset (SrcTO, 64 bits)        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5040 Section 4.4. The caller checks len(b) >= ReadRequestLen once.
type ReadRequest []byte

// ReadRequestULPDU is the length of a Read Request's ULPDU.
const ReadRequestULPDU = ReadRequestLen - 2

// Untagged views the DDP header.
func (b ReadRequest) Untagged() Untagged { return Untagged(b) }

// SinkSTag is opaque to the Data Source, which returns it in the Response.
func (b ReadRequest) SinkSTag() uint32 { return binary.BigEndian.Uint32(b[20:]) }

// SinkTO is the Tagged Offset at which the Response starts. It is opaque to the Data
// Source.
func (b ReadRequest) SinkTO() uint64 { return binary.BigEndian.Uint64(b[24:]) }

// Size is the number of octets asked for.
func (b ReadRequest) Size() uint32 { return binary.BigEndian.Uint32(b[32:]) }

// SrcSTag names the buffer to read.
func (b ReadRequest) SrcSTag() uint32 { return binary.BigEndian.Uint32(b[36:]) }

// SrcTO is the Tagged Offset at which reading starts.
func (b ReadRequest) SrcTO() uint64 { return binary.BigEndian.Uint64(b[40:]) }

// A Read has the fields of a Read Request's RDMAP header.
type Read struct {
	SinkSTag uint32
	SinkTO   uint64
	Size     uint32
	SrcSTag  uint32
	SrcTO    uint64
}

// AppendReadRequest appends a Read Request's headers.
func AppendReadRequest(b []byte, msn uint32, r Read) []byte {
	b = AppendUntagged(b, OpReadRequest, true, 0, msn, 0, ReadRequestLen-UntaggedLen)
	return appendRead(b, r)
}

// appendRead appends the RDMAP header alone.
func appendRead(b []byte, r Read) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SrcSTag)
	return binary.BigEndian.AppendUint64(b, r.SrcTO)
}
