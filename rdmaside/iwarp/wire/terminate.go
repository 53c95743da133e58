package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A Code is the reason why a stream was terminated: Layer, EType and Error Code, written
// layer/etype/code in hexadecimal. RFC 5040 Section 4.8, RFC 5041 Section 7.2, RFC
// 5044 Section 8, RFC 6581 Section 8.
type Code struct {
	Layer, EType, Code uint8
}

func (c Code) String() string {
	s := fmt.Sprintf("%x/%x/%02x", c.Layer, c.EType, c.Code)
	if t, ok := codeText[c]; ok {
		return s + " " + t
	}
	return s
}

// Known reports whether an RFC defines c.
func (c Code) Known() bool {
	_, ok := codeText[c]
	return ok
}

// The codes that package iwarp sends, by layer.
var (
	CodeLocal = Code{0, 0, 0x00}

	CodeReadSTag   = Code{0, 1, 0x00}
	CodeReadBounds = Code{0, 1, 0x01}
	CodeReadRights = Code{0, 1, 0x02}
	CodeReadWrap   = Code{0, 1, 0x04}

	CodeRDMAPVersion = Code{0, 2, 0x05}
	CodeOpcode       = Code{0, 2, 0x06}
	CodeOpInvalidate = Code{0, 2, 0x09}

	CodeTaggedSTag    = Code{1, 1, 0x00}
	CodeTaggedBounds  = Code{1, 1, 0x01}
	CodeTaggedWrap    = Code{1, 1, 0x03}
	CodeTaggedVersion = Code{1, 1, 0x04}

	CodeQN              = Code{1, 2, 0x01}
	CodeNoBuffer        = Code{1, 2, 0x02}
	CodeMSN             = Code{1, 2, 0x03}
	CodeMO              = Code{1, 2, 0x04}
	CodeTooLong         = Code{1, 2, 0x05}
	CodeUntaggedVersion = Code{1, 2, 0x06}

	CodeCRC    = Code{2, 0, 0x02}
	CodeMarker = Code{2, 0, 0x03}
	CodeIRD    = Code{2, 0, 0x06}
	CodeRTR    = Code{2, 0, 0x07}
)

// codeText names every code of the RFCs, because a peer may send any of them.
var codeText = map[Code]string{
	CodeLocal: "local catastrophic error",

	CodeReadSTag:   "invalid STag",
	CodeReadBounds: "base or bounds violation",
	CodeReadRights: "access rights violation",
	{0, 1, 0x03}:   "STag not associated with stream",
	CodeReadWrap:   "TO wrap",
	{0, 1, 0x09}:   "STag cannot be invalidated",
	{0, 1, 0xff}:   "unspecified remote protection error",

	CodeRDMAPVersion: "invalid RDMAP version",
	CodeOpcode:       "unexpected opcode",
	{0, 2, 0x07}:     "catastrophic error on this stream",
	{0, 2, 0x08}:     "catastrophic error, global",
	CodeOpInvalidate: "STag cannot be invalidated",
	{0, 2, 0xff}:     "unspecified remote operation error",

	{1, 0, 0x00}: "DDP local catastrophic error",

	CodeTaggedSTag:    "invalid STag",
	CodeTaggedBounds:  "base or bounds violation",
	{1, 1, 0x02}:      "STag not associated with stream",
	CodeTaggedWrap:    "TO wrap",
	CodeTaggedVersion: "invalid DDP version",

	CodeQN:              "invalid QN",
	CodeNoBuffer:        "no buffer for MSN",
	CodeMSN:             "MSN out of range",
	CodeMO:              "invalid MO",
	CodeTooLong:         "message too long for buffer",
	CodeUntaggedVersion: "invalid DDP version",

	{2, 0, 0x01}: "TCP connection lost",
	CodeCRC:      "CRC error",
	CodeMarker:   "Marker and ULPDU_Length disagree",
	{2, 0, 0x04}: "invalid start-up frame",
	{2, 0, 0x05}: "MPA local catastrophic error",
	CodeIRD:      "insufficient IRD resources",
	CodeRTR:      "no matching RTR option",
}

// A Terminate is the payload of a Terminate Message.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| Layer | EType |  Error Code   |M|D|R|       Reserved          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  DDP Segment Length (if D)    |  Terminated DDP Header (if D) |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
//	|                     (14 or 18 octets)                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Terminated RDMA Header (if R, 28 octets)             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5040 Section 4.8.
type Terminate struct {
	Code   Code
	SegLen uint16 // the offending ULPDU_Length, when HasLen
	HasLen bool   // M
	DDP    []byte // its DDP header, 14 or 18 octets; nil when D is clear
	RDMAP  []byte // its Read Request header, 28 octets; nil when R is clear

	// Mirrored means that the nibbles of the first octet and the order of M, D and R
	// are swapped, as Linux siw sends them on little-endian hosts.
	Mirrored bool
}

// The parts of a Terminate.
const (
	terminateMin   = 4
	taggedDDPLen   = TaggedLen - 2
	untaggedDDPLen = UntaggedLen - 2
	readLen        = ReadRequestLen - UntaggedLen

	// MaxTerminate is the length of the longest payload.
	MaxTerminate = terminateMin + 2 + untaggedDDPLen + readLen
)

// errShort reports input that ends before the length that it announces.
var errShort = errors.New("iwarp/wire: short")

// ParseTerminate reads a Terminate's payload in the RFC's form or in siw's. It
// borrows b. It ignores headers that are announced but missing: a Terminate is the last
// message of a peer, and its first four octets have the reason.
func ParseTerminate(b []byte) (Terminate, error) {
	if len(b) < terminateMin {
		return Terminate{}, fmt.Errorf("terminate of %d octets: %w", len(b), errShort)
	}
	rfc := Code{b[0] >> 4, b[0] & 15, b[1]}
	siw := Code{b[0] & 15, b[0] >> 4, b[1]}
	t := Terminate{Code: rfc}
	m, d, r := b[2]&0x80 != 0, b[2]&0x40 != 0, b[2]&0x20 != 0
	// In the RFC's form the low bits are reserved and zero, in siw's the high ones.
	// Without any header the code decides; 20 05 and 20 06 exist in both tables.
	if b[2]&0xe0 == 0 && (b[2]&7 != 0 || !rfc.Known() && siw.Known()) {
		t.Code, t.Mirrored = siw, true
		m, d, r = b[2]&1 != 0, b[2]&2 != 0, b[2]&4 != 0
	}
	b = b[terminateMin:]
	if !d || len(b) < 2+taggedDDPLen {
		return t, nil
	}
	t.SegLen, t.HasLen = binary.BigEndian.Uint16(b), m
	b = b[2:]
	n := untaggedDDPLen
	if b[0]&0x80 != 0 {
		n = taggedDDPLen
	}
	if len(b) < n {
		return t, nil
	}
	t.DDP = b[:n]
	if b = b[n:]; r && len(b) >= readLen {
		t.RDMAP = b[:readLen]
	}
	return t, nil
}

// Append appends the payload, in siw's form when Mirrored.
func (t *Terminate) Append(b []byte) []byte {
	var flags [3]byte // M, D, R
	if t.HasLen {
		flags[0] = 1
	}
	if t.DDP != nil {
		flags[1] = 1
	}
	if t.RDMAP != nil {
		flags[2] = 1
	}
	if t.Mirrored {
		b = append(b, t.Code.EType<<4|t.Code.Layer, t.Code.Code, flags[2]<<2|flags[1]<<1|flags[0], 0)
	} else {
		b = append(b, t.Code.Layer<<4|t.Code.EType, t.Code.Code, flags[0]<<7|flags[1]<<6|flags[2]<<5, 0)
	}
	if t.DDP == nil {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, t.SegLen)
	b = append(b, t.DDP...)
	return append(b, t.RDMAP...)
}
