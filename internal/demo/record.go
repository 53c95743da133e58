package demo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// go-nfs allocates what a length on the wire says before it has read an octet of it. So the demo
// reads each record itself, and go-nfs gets those whose lengths are within them.

const (
	maxRecord = 4<<20 + 64<<10 // octets of a record: the bridge's default for limits.record
	maxRead   = 4 << 20        // octets of one READ, READDIR or READDIRPLUS: the default of chunks.io
)

var errRecord = errors.New("demo: a record with a length out of bounds")

// readRecord reads a record of one fragment, with its mark, into b. b grows as octets arrive.
func readRecord(r io.Reader, b *bytes.Buffer) error {
	b.Reset()
	if _, err := io.CopyN(b, r, 4); err != nil {
		return err
	}
	mark := binary.BigEndian.Uint32(b.Bytes())
	n := mark &^ (1 << 31)
	if mark == n || n < 40 || n > maxRecord {
		return errRecord
	}
	if _, err := io.CopyN(b, r, int64(n)); err != nil {
		return err
	}
	w := walk{b: b.Bytes()[4:]}
	if w.call(); w.bad {
		return errRecord
	}
	return nil
}

// arguments are those of the procedures of NFSv3 and MOUNTv3 that have any, a letter an item: o is
// a variable-length opaque or string, 4 and 8 are that many octets, c is a count of octets to
// read, and a is sattr3. Items that have no lengths are left out at the end.
var arguments = map[uint32]map[uint32]string{
	100003: {
		1: "o", 2: "oa", 3: "oo", 4: "o", 5: "o", 6: "o8c", 7: "o844o", 8: "oo", 9: "oo", 10: "ooao", 11: "oo",
		12: "oo", 13: "oo", 14: "oooo", 15: "ooo", 16: "o88c", 17: "o88cc", 18: "o", 19: "o", 20: "o", 21: "o",
	},
	mountProgram: {1: "o", 3: "o"},
}

// A walk steps over the items of a Call.
type walk struct {
	b   []byte
	bad bool // an item ends behind the Call
}

func (w *walk) skip(n int) []byte {
	if n > len(w.b) {
		w.bad = true
		return make([]byte, 4)
	}
	item := w.b[:n]
	w.b = w.b[n:]
	return item
}

func (w *walk) word() uint32 { return binary.BigEndian.Uint32(w.skip(4)) }

func (w *walk) opaque() {
	n := w.word()
	if n > maxRecord {
		w.bad = true
		return
	}
	w.skip(int(n+3) &^ 3)
}

// call checks the lengths in a Call. It lowers counts of octets to read to maxRead: a server may
// return less than a client asks for.
func (w *walk) call() {
	w.skip(12) // xid, CALL, rpcvers
	program, _, procedure := w.word(), w.word(), w.word()
	for range 2 { // credential and verifier
		w.skip(4)
		w.opaque()
	}
	for _, item := range arguments[program][procedure] {
		if w.bad {
			return
		}
		switch item {
		case 'o':
			w.opaque()
		case '4':
			w.skip(4)
		case '8':
			w.skip(8)
		case 'c':
			if c := w.skip(4); binary.BigEndian.Uint32(c) > maxRead {
				binary.BigEndian.PutUint32(c, maxRead)
			}
		case 'a':
			w.attributes()
		}
	}
}

// attributes steps over sattr3: mode, uid, gid, size, atime and mtime. RFC 1813 Section 2.6.
func (w *walk) attributes() {
	for _, n := range []int{4, 4, 4, 8} {
		if w.word() != 0 {
			w.skip(n)
		}
	}
	for range 2 {
		if w.word() == 2 { // SET_TO_CLIENT_TIME
			w.skip(8)
		}
	}
}
