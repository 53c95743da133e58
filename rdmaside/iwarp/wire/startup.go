package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Start-up frame bounds in octets.
const (
	FrameLen   = 20  // Key, flags, revision, PD_Length
	MaxPrivate = 512 // RFC 5044 Section 7.1.1
	keyLen     = 16
)

// The keys that start-up frames begin with.
const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

// FrameFlags is the octet of flags of a start-up frame. Reserved bits are sent as zero
// and ignored on reception.
type FrameFlags uint8

// The flags.
const (
	FlagMarkers  FrameFlags = 0x80 // M: the sender requires Markers in the FPDUs it receives
	FlagCRC      FrameFlags = 0x40 // C: CRC in both directions
	FlagReject   FrameFlags = 0x20 // R: rejected; of a Reply only
	FlagEnhanced FrameFlags = 0x10 // S: private data begins with IRD and ORD
)

// A Frame is an MPA Request or Reply.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Key (16 octets)                           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|M|C|R|S|  Res  |      Rev      |          PD_Length            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Private Data (0 to 512 octets)               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5044 Section 7.1.1, RFC 6581 Section 6.
type Frame struct {
	Reply    bool
	Flags    FrameFlags
	Revision uint8
	Enhanced Enhanced // when Flags has FlagEnhanced
	Private  []byte   // behind the Enhanced block
}

// Enhanced is the block before private data of revision 2.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|A|B|        IRD                |C|D|        ORD                |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 6581 Section 9.
type Enhanced struct {
	PeerToPeer bool   // A: the Initiator sends an RTR first
	RTRSend    bool   // B: zero-length Send
	RTRWrite   bool   // C: zero-length RDMA Write
	RTRRead    bool   // D: zero-length RDMA Read
	IRD, ORD   uint16 // 0 to 0x3fff
}

const (
	// EnhancedLen is the length of the block.
	EnhancedLen = 4
	// NoNegotiation as the value of IRD or ORD leaves its negotiation to the ULP.
	NoNegotiation = 0x3fff
)

// A FrameError reports a faulty start-up frame.
type FrameError struct{ Reason string }

func (e *FrameError) Error() string { return "iwarp/wire: start-up frame: " + e.Reason }

// ErrBothInitiators reports a Request where a Reply was expected.
var ErrBothInitiators = errors.New("iwarp/wire: peer sent a Request, not a Reply")

// ParseFrameHeader reads the first FrameLen octets and returns the length of the
// private data that follows, block included, at most MaxPrivate.
func ParseFrameHeader(b []byte) (f Frame, private int, err error) {
	if len(b) < FrameLen {
		return f, 0, fmt.Errorf("start-up frame of %d octets: %w", len(b), errShort)
	}
	switch {
	case bytes.Equal(b[:keyLen], []byte(requestKey)):
	case bytes.Equal(b[:keyLen], []byte(replyKey)):
		f.Reply = true
	default:
		return f, 0, &FrameError{"bad key"}
	}
	f.Flags, f.Revision = FrameFlags(b[16]), b[17]
	private = int(binary.BigEndian.Uint16(b[18:]))
	if private > MaxPrivate {
		return f, 0, &FrameError{"PD_Length over 512"}
	}
	return f, private, nil
}

// ParsePrivate reads b, which is everything that follows the header. It keeps b.
func (f *Frame) ParsePrivate(b []byte) error {
	f.Private = b
	if f.Flags&FlagEnhanced == 0 || f.Revision < 2 {
		return nil
	}
	if len(b) < EnhancedLen {
		return &FrameError{"S without IRD and ORD"}
	}
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	f.Enhanced = Enhanced{IRD: ird & 0x3fff, ORD: ord & 0x3fff}
	// "On reception, if Control Flag A is set to 0, then Control Flags B, C, and D
	// MUST be ignored." RFC 6581 Section 9.2.
	if ird&0x8000 != 0 {
		f.Enhanced.PeerToPeer = true
		f.Enhanced.RTRSend = ird&0x4000 != 0
		f.Enhanced.RTRWrite = ord&0x8000 != 0
		f.Enhanced.RTRRead = ord&0x4000 != 0
	}
	f.Private = b[EnhancedLen:]
	return nil
}

// Append appends the frame. Private data beyond MaxPrivate is a bug of the caller.
func (f *Frame) Append(b []byte) []byte {
	n := len(f.Private)
	if f.Flags&FlagEnhanced != 0 {
		n += EnhancedLen
	}
	if n > MaxPrivate {
		panic("BUG: iwarp/wire: private data too long")
	}
	key := requestKey
	if f.Reply {
		key = replyKey
	}
	b = append(b, key...)
	b = append(b, byte(f.Flags), f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.Flags&FlagEnhanced != 0 {
		e := f.Enhanced
		bit := func(v bool, m uint16) uint16 {
			if v {
				return m
			}
			return 0
		}
		b = binary.BigEndian.AppendUint16(b, bit(e.PeerToPeer, 0x8000)|bit(e.RTRSend, 0x4000)|min(e.IRD, NoNegotiation))
		b = binary.BigEndian.AppendUint16(b, bit(e.RTRWrite, 0x8000)|bit(e.RTRRead, 0x4000)|min(e.ORD, NoNegotiation))
	}
	return append(b, f.Private...)
}
