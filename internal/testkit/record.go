package testkit

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

const (
	lastFragment = 1 << 31
	longRecord   = 4096 // from this length on WriteRecord does not copy
)

// Record puts m into a record of one fragment. RFC 5531 Section 11.
func Record(m []byte) []byte {
	b := make([]byte, 4, 4+len(m))
	binary.BigEndian.PutUint32(b, lastFragment|uint32(len(m)))
	return append(b, m...)
}

// WriteRecord writes m as a record of one fragment. A TCP connection gets it in one system
// call. A long message is not copied: a race build would report the copy and its memory to the
// race detector.
func WriteRecord(w io.Writer, m []byte) error {
	if len(m) <= longRecord {
		_, err := w.Write(Record(m))
		return err
	}
	_, err := (&net.Buffers{binary.BigEndian.AppendUint32(nil, lastFragment|uint32(len(m))), m}).WriteTo(w)
	return err
}

// ReadRecord reads one record of at most 8 MiB.
func ReadRecord(r io.Reader) ([]byte, error) {
	var rec []byte
	for {
		var mark [4]byte
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			return nil, err
		}
		v := binary.BigEndian.Uint32(mark[:])
		n := int(v &^ lastFragment)
		if n+len(rec) > 8<<20 {
			return nil, fmt.Errorf("testkit: record of more than %d octets", n+len(rec))
		}
		at := len(rec)
		rec = append(rec, make([]byte, n)...)
		if _, err := io.ReadFull(r, rec[at:]); err != nil {
			return nil, err
		}
		if v&lastFragment != 0 {
			return rec, nil
		}
	}
}
