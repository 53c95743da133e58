// Package wire has the formats of iWARP: MPA start-up frames and FPDUs (RFC 5044,
// RFC 6581), DDP Segments (RFC 5041) and RDMAP headers and Terminate codes (RFC
// 5040). It is bytes only: it keeps no state between calls, takes no locks, and
// does no I/O.
//
// Headers are views over the octets that start with ULPDU_Length. Offsets in the
// drawings count from there.
package wire

import (
	"encoding/binary"
	"strconv"
)

// An Opcode is the kind of an RDMA Message. RFC 5040 Section 4.1.
type Opcode uint8

// The opcodes. 8 to 15 are reserved. RFC 7306 uses some of them, this package none.
const (
	OpWrite               Opcode = 0
	OpReadRequest         Opcode = 1
	OpReadResponse        Opcode = 2
	OpSend                Opcode = 3
	OpSendInvalidate      Opcode = 4
	OpSendEvent           Opcode = 5 // with Solicited Event
	OpSendEventInvalidate Opcode = 6
	OpTerminate           Opcode = 7
)

var opcodeNames = [...]string{
	"Write", "Read Request", "Read Response", "Send", "Send with Invalidate",
	"Send with Solicited Event", "Send with Solicited Event and Invalidate", "Terminate",
}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return "opcode " + strconv.Itoa(int(o))
}

// Tagged reports whether messages of this opcode are tagged.
func (o Opcode) Tagged() bool { return o == OpWrite || o == OpReadResponse }

// Known reports whether RFC 5040 defines o.
func (o Opcode) Known() bool { return o <= OpTerminate }

// Invalidates reports whether o carries an STag to invalidate.
func (o Opcode) Invalidates() bool { return o == OpSendInvalidate || o == OpSendEventInvalidate }

// Queue is the QN of untagged messages of this opcode. RFC 5040 Section 4.1.
func (o Opcode) Queue() uint32 {
	switch o {
	case OpReadRequest:
		return QueueReadRequest
	case OpTerminate:
		return QueueTerminate
	default:
		return QueueSend
	}
}

// HeaderLen is the length of the FPDU header of messages of this opcode, with
// ULPDU_Length and, for a Read Request, the RDMAP header.
func (o Opcode) HeaderLen() int {
	switch o {
	case OpWrite, OpReadResponse:
		return TaggedLen
	case OpReadRequest:
		return ReadRequestLen
	default:
		return UntaggedLen
	}
}

// The queue numbers of untagged messages.
const (
	QueueSend        = 0
	QueueReadRequest = 1
	QueueTerminate   = 2
)

// The only protocol versions that iwarp speaks. RDMAP 0 is the RDMA Consortium's.
const (
	DDPVersion   = 1
	RDMAPVersion = 1
)

// Lengths in octets, from ULPDU_Length to the end of the header.
const (
	ControlLen     = 4 // ULPDU_Length and the two control octets
	TaggedLen      = 16
	UntaggedLen    = 20
	ReadRequestLen = UntaggedLen + 28
	CRCLen         = 4

	// MaxHeaderLen is the longest of them.
	MaxHeaderLen = ReadRequestLen
)

// Bounds on a ULPDU.
const (
	// MaxULPDU is the longest ULPDU that ULPDU_Length can express. iwarp accepts all
	// lengths, because siw sends ULPDUs of 65474 octets on loopback.
	MaxULPDU = 65535
	// MaxSendULPDU is the longest ULPDU that may be sent. RFC 5044 Section 3.
	MaxSendULPDU = 64768
	// minMULPDU is the smallest value of MULPDU. RFC 5044 Section 4.5.
	minMULPDU = 128
)

// MULPDU is the longest ULPDU that fits one TCP segment of emss octets, clamped between
// minMULPDU and MaxSendULPDU. RFC 5044 Section 4.5:
//
//	MULPDU = EMSS - (6 + EMSS mod 4)                       without Markers
//	MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)   with Markers
func MULPDU(emss int, markers bool) int {
	n := emss - (6 + emss%4)
	if markers {
		n -= 4 * ((emss + MarkerSpacing - 1) / MarkerSpacing)
	}
	return min(max(n, minMULPDU), MaxSendULPDU)
}

// Pad is the number of pad octets behind a ULPDU of n octets. They make the length of
// the FPDU a multiple of four. RFC 5044 Section 4.1.
func Pad(n int) int { return -(2 + n) & 3 }

// FPDULen is the length of the FPDU of a ULPDU of n octets, without Markers.
func FPDULen(n int) int { return 2 + n + Pad(n) + CRCLen }

// A Control is the view of the four octets that every FPDU starts with.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         ULPDU_Length          |T|L| Rsvd  | DV| RV|Rsv| Opcode|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5044 Section 4.1, RFC 5041 Section 4.1, RFC 5040 Section 4.1. Reserved bits
// are sent as zero and not checked. The caller checks len(b) >= ControlLen once.
type Control []byte

// ULPDULen is the number of octets between ULPDU_Length and the pad.
func (b Control) ULPDULen() int { return int(binary.BigEndian.Uint16(b)) }

// Tagged is the T bit.
func (b Control) Tagged() bool { return b[2]&0x80 != 0 }

// Last is the L bit.
func (b Control) Last() bool { return b[2]&0x40 != 0 }

// DDPVersion returns DV.
func (b Control) DDPVersion() uint8 { return b[2] & 3 }

// RDMAPVersion returns RV.
func (b Control) RDMAPVersion() uint8 { return b[3] >> 6 }

// Opcode is the RDMAP opcode.
func (b Control) Opcode() Opcode { return Opcode(b[3] & 15) }

// Alone reports whether the octets are those before the only segment of a message of the untagged opcode
// op, in the versions that iwarp speaks.
func (b Control) Alone(op Opcode) bool {
	return b[2]&0xc3 == 0x40|DDPVersion && b[3]&0xcf == RDMAPVersion<<6|byte(op)
}

func putControl(b []byte, ulpdu int, op Opcode, last bool) {
	binary.BigEndian.PutUint16(b, uint16(ulpdu))
	b[2] = DDPVersion
	if op.Tagged() {
		b[2] |= 0x80
	}
	if last {
		b[2] |= 0x40
	}
	b[3] = RDMAPVersion<<6 | byte(op)
}
