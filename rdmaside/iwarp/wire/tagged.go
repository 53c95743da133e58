package wire

import "encoding/binary"

// A Tagged is the FPDU header before a tagged DDP Segment, viewed in place.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         ULPDU_Length          |T|L| Rsvd  | DV| RV|Rsv| Opcode|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              STag                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          TO (64 bits)                         |
//	+                                                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5044 Section 4.1, RFC 5041 Section 4.2, RFC 5040 Section 4.1.
// The caller checks len(b) >= TaggedLen once; accessors do not.
type Tagged []byte

// Control views the start of the header.
func (b Tagged) Control() Control { return Control(b) }

// STag names the Data Sink's buffer.
func (b Tagged) STag() uint32 { return binary.BigEndian.Uint32(b[4:]) }

// TO is the offset in that buffer at which the payload starts. It is unsigned, because
// Linux advertises kernel addresses.
func (b Tagged) TO() uint64 { return binary.BigEndian.Uint64(b[8:]) }

// Len is the number of payload octets; negative when the ULPDU is too short for
// its header.
func (b Tagged) Len() int { return b.Control().ULPDULen() + 2 - TaggedLen }

// AppendTagged appends the header of a segment with n octets of payload. op is
// OpWrite or OpReadResponse.
func AppendTagged(b []byte, op Opcode, last bool, stag uint32, to uint64, n int) []byte {
	var h [TaggedLen]byte
	putControl(h[:], n+TaggedLen-2, op, last)
	binary.BigEndian.PutUint32(h[4:], stag)
	binary.BigEndian.PutUint64(h[8:], to)
	return append(b, h[:]...)
}
