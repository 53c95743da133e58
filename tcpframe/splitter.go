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
	last   bool // the fragment is the last of its record
	marked int  // octets of mark that have arrived; less than markLen between calls

	left    int   // octets of the fragment that have not arrived
	size    int   // octets of the record that have arrived
	inMarks int64 // octets of the record's marks that have arrived in full
	most    int   // the bound of a record that is dropped, in place of maxRecord; 0 for none
}

// marks consumes n octets of record marks at the front of b. It stops where a fragment with
// octets begins, where the record ends (then done is true), or where b ends. The caller must
// call it only if left is 0. After an error it must call drop, or not use the splitter again.
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
		s.left, s.last = int(v&maxFragment), v&lastFragment != 0
		s.inMarks += markLen
		if err := s.check(); err != nil {
			return n, false, err
		}
		switch {
		case s.left > 0:
			return n, false, nil
		case s.last:
			s.reset()
			return n, true, nil
		}
	}
}

// whole returns the length of the record whose mark is at b[at:], if b has all of it and it is one fragment without
// faults, as nearly every record is. It consumes nothing, and returns 0 for any other record. No record has begun.
func (s *splitter) whole(b []byte, at int) int {
	left := len(b) - at - markLen
	if left < minRecord {
		return 0
	}
	v := binary.BigEndian.Uint32(b[at:])
	n := int(v & maxFragment)
	if v&lastFragment == 0 || n > left || n < minRecord || n > s.maxRecord {
		return 0
	}
	return n
}

// check checks the record as far as its marks say what it has.
func (s *splitter) check() *recordError {
	most, total := int64(s.maxRecord), int64(s.size)+int64(s.left)
	if s.most > 0 {
		most = int64(s.most)
	}
	switch {
	case s.inMarks > most:
		return &recordError{reason: reasonFragments, value: s.inMarks, limit: most}
	case total > most:
		return &recordError{reason: reasonTooLong, value: total, limit: most}
	case s.last && total < minRecord && s.most == 0:
		return &recordError{reason: reasonTooShort, value: total, limit: minRecord}
	}
	return nil
}

// drop has the splitter go on behind an error, to the end of the record. The record may have up to most octets.
func (s *splitter) drop(most int) *recordError {
	s.most = most
	return s.check()
}

// skipped reports whether a record of which marks has returned an error has ended with that mark.
func (s *splitter) skipped() bool { return s.last && s.left == 0 }

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

func (s *splitter) reset() { s.left, s.size, s.inMarks, s.last, s.most = 0, 0, 0, false, 0 }

// putMark writes to dst the mark of a record that is one fragment of n octets.
func putMark(dst *[markLen]byte, n int) {
	binary.BigEndian.PutUint32(dst[:], uint32(n)|lastFragment)
}
