package ask

import (
	"encoding/binary"
	"errors"
	"io"
)

// Record puts m into a record of one fragment: RFC 5531 Section 11.
func Record(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(m)), 1<<31|uint32(len(m))), m...)
}

// ErrLong reports a record that is longer than it may be, or of too many fragments.
var ErrLong = errors.New("rpc: a record is too long")

// ReadRecord reads a record of at most so many octets, of one or more fragments. It calls begun for each fragment that has begun, with its
// octets, and ends with its error.
func ReadRecord(r io.Reader, most int, begun func(octets int) error) (m []byte, err error) {
	for fragments := 0; ; fragments++ {
		var mark [4]byte
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			return nil, err
		}
		n := int(binary.BigEndian.Uint32(mark[:]) &^ (1 << 31))
		if err := begun(n); err != nil {
			return nil, err
		}
		if len(m)+n > most || fragments > most/4 {
			return nil, ErrLong
		}
		m = append(m, make([]byte, n)...)
		if _, err := io.ReadFull(r, m[len(m)-n:]); err != nil {
			return nil, err
		}
		if mark[0]&0x80 != 0 {
			return m, nil
		}
	}
}
