package tcpframe

import "encoding/binary"

const (
	markLen      = 4
	lastFragment = 1 << 31
	// maxFragment is the longest fragment that a record mark can announce.
	maxFragment = lastFragment - 1
	// minRecord is the length of an XID and a message type, which every RPC message has.
	minRecord = 8
)

// A splitter finds the records in a stream. It reads marks and counts octets; it does no
// I/O and holds no payload.
//
//	record   = 0*fragment last
//	fragment = mark *OCTET
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|L|                     fragment length                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// "A record is composed of one or more record fragments. [...] the boolean is
// the highest-order bit of the header; the length is the 31 low-order bits."
// RFC 5531 Section 11. Nothing there bounds the number of fragments, or forbids those without
// octets. So the splitter bounds octets: a record may have as many of them in its marks as in
// its fragments.
//
// The caller alternates: it calls marks while left is 0, and otherwise consumes up to left
// octets and calls advance.
type splitter struct {
	maxRecord int

	mark   [markLen]byte
	marked int // octets of mark that have arrived; less than markLen between calls

	left    int   // octets of the fragment that have not arrived
	size    int   // octets of the record that have arrived
	inMarks int64 // octets of the record's marks that have arrived in full
	last    bool  // the fragment is the last of its record
}

// marks consumes n octets of record marks at the front of b. It stops where a fragment with
// octets begins, where the record ends (then done is true), or where b ends. The caller must
// call it only if left is 0, and must not use the splitter after an error.
func (s *splitter) marks(b []byte) (n int, done bool, err *recordError) {
	for {
		var v uint32
		if s.marked == 0 && len(b)-n >= markLen {
			v = binary.BigEndian.Uint32(b[n:])
			n += markLen
		} else {
			k := copy(s.mark[s.marked:], b[n:])
			n += k
			if s.marked += k; s.marked < markLen {
				return n, false, nil
			}
			s.marked = 0
			v = binary.BigEndian.Uint32(s.mark[:])
		}
		length := int64(v & maxFragment)
		if s.inMarks += markLen; s.inMarks > int64(s.maxRecord) {
			return n, false, &recordError{reason: reasonFragments, value: s.inMarks, limit: int64(s.maxRecord)}
		}
		if total := int64(s.size) + length; total > int64(s.maxRecord) {
			return n, false, &recordError{reason: reasonTooLong, value: total, limit: int64(s.maxRecord)}
		}
		s.last = v&lastFragment != 0
		s.left = int(length)
		switch {
		case s.left > 0:
			if s.last && s.size+s.left < minRecord {
				return n, false, tooShort(s.size + s.left)
			}
			return n, false, nil
		case s.last:
			if s.size < minRecord {
				return n, false, tooShort(s.size)
			}
			s.reset()
			return n, true, nil
		}
	}
}

// advance counts k octets of the fragment, at most left. done reports whether the record
// ends with them.
func (s *splitter) advance(k int) (done bool) {
	s.left -= k
	s.size += k
	if s.left > 0 || !s.last {
		return false
	}
	s.reset()
	return true
}

// begun reports whether a part of a record, be it only of its mark, has arrived.
func (s *splitter) begun() bool { return s.marked > 0 || s.inMarks > 0 }

func (s *splitter) reset() { s.left, s.size, s.inMarks, s.last = 0, 0, 0, false }

func tooShort(n int) *recordError {
	return &recordError{reason: reasonTooShort, value: int64(n), limit: minRecord}
}

// putMark writes to dst the mark of a record that is one fragment of n octets.
func putMark(dst *[markLen]byte, n int) {
	binary.BigEndian.PutUint32(dst[:], uint32(n)|lastFragment)
}
