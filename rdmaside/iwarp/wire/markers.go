package wire

import "encoding/binary"

const (
	// MarkerSpacing is the distance between Markers in the stream.
	MarkerSpacing = 512
	// MarkerLen is the length of a Marker.
	MarkerLen = 4
)

// Markers puts Markers into one direction of a stream, for a peer whose M bit
// asks for them. The zero value stands at the first octet after the start-up
// frame.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           RESERVED            |            FPDUPTR            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// RFC 5044 Sections 4.2 and 4.3. Stream octets 0, 512, 1024, ... each begin a Marker.
// FPDUPTR is the distance in the stream back to the ULPDU_Length of the FPDU that the
// Marker is in. It is 0 between FPDUs, where the Marker belongs to the next one. CRC and
// all positions include Markers; ULPDU_Length and pad do not.
type Markers struct{ pos int }

// Append appends an FPDU with Markers and CRC. body has the octets from ULPDU_Length to
// the pad, a multiple of four. The CRC is zero unless crc is set.
func (m *Markers) Append(b, body []byte, crc bool) []byte {
	from := len(b)
	if m.pos == 0 {
		b = append(b, 0, 0, 0, 0)
		m.pos = MarkerLen
	}
	start := len(b) // of ULPDU_Length
	for len(body) > 0 {
		n := min(len(body), MarkerSpacing-m.pos)
		b = append(b, body[:n]...)
		body = body[n:]
		m.pos += n
		// This includes the place behind the last pad octet: a Marker between pad and
		// CRC belongs to this FPDU.
		if m.pos == MarkerSpacing {
			b = append(b, 0, 0)
			b = binary.BigEndian.AppendUint16(b, uint16(len(b)-2-start))
			m.pos = MarkerLen
		}
	}
	sum := uint32(0)
	if crc {
		sum = Checksum(b[from:])
	}
	m.pos = (m.pos + CRCLen) % MarkerSpacing
	return AppendCRC(b, sum)
}

// MarkedLen bounds the length that an FPDU of n octets has with Markers.
func MarkedLen(n int) int {
	return n + MarkerLen*(n/(MarkerSpacing-MarkerLen)+2)
}

// Seek sets the position in the stream, in octets since its start.
func (m *Markers) Seek(pos uint64) { m.pos = int(pos % MarkerSpacing) }
