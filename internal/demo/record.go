package demo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// go-nfs allocates what a length on the wire says before it has read an octet of it. So the demo
// reads each record itself, and go-nfs gets those whose lengths are within them.

const (
	maxRecord = 4<<20 + 64<<10 // octets of a record: the bridge's default for limits.record
	maxRead   = 4 << 20        // octets of one READ, READDIR or READDIRPLUS: the default of chunks.io
)

// go-nfs answers READDIR with a count below 1024 with TOOSMALL, and counts 512 octets for each entry. So what it
// returns for a count of 1024 has no more than one entry beside "." and "..", and is no longer than oneEntry:
// attributes, verifier, the three entries, the last with the longest name, and eof. RFC 1813 Section 3.3.16.
const (
	minReadDir = 1024
	oneEntry   = 88 + 8 + 4 + 28 + 28 + (24 + maxName + 1) + 4
)

var errRecord = errors.New("demo: a record that is no Call, or too long")

// readRecord reads a record of one fragment, with its mark, into b. b grows as octets arrive. refusal is the Reply to
// a Call that is not for go-nfs.
func readRecord(r io.Reader, b *bytes.Buffer) (refusal []byte, err error) {
	b.Reset()
	if _, err := io.CopyN(b, r, 4); err != nil {
		return nil, err
	}
	mark := binary.BigEndian.Uint32(b.Bytes())
	n := mark &^ (1 << 31)
	if mark == n || n > maxRecord {
		return nil, errRecord
	}
	if _, err := io.CopyN(b, r, int64(n)); err != nil {
		return nil, err
	}
	return check(b.Bytes()[4:])
}

// check returns the Reply to the Call m if go-nfs would answer it wrongly: it looks at no version and no flavor, and
// calls a procedure that it lacks PROG_MISMATCH. check also looks at the lengths in the arguments, and changes counts.
func check(m []byte) (refusal []byte, err error) {
	var h oncrpc.Call
	if err := oncrpc.ParseCall(m, &h); err != nil {
		b, why := h.AppendRefusal(nil, err)
		if why == oncrpc.RefusedNot {
			return nil, errRecord
		}
		return b, nil
	}
	procedures, known := arguments[h.Program]
	switch {
	case h.Flavor != oncrpc.FlavorNone && h.Flavor != oncrpc.FlavorSys:
		return oncrpc.AppendAuthError(nil, h.XID, oncrpc.AuthBadCredential), nil
	case !known:
		return oncrpc.AppendAccepted(nil, h.XID, oncrpc.ProgramUnavailable), nil
	case h.Version != 3:
		return oncrpc.AppendProgramMismatch(nil, h.XID, 3, 3), nil
	case h.Procedure >= uint32(len(procedures)):
		return oncrpc.AppendAccepted(nil, h.XID, oncrpc.ProcedureUnavailable), nil
	}
	w := walk{b: m[h.Args:]}
	if w.arguments(procedures[h.Procedure]); w.bad {
		return oncrpc.AppendAccepted(nil, h.XID, oncrpc.GarbageArguments), nil
	}
	return nil, nil
}

// arguments are those of all procedures of NFSv3 and MOUNTv3, a letter an item: o is
// a variable-length opaque or string, 4 and 8 are that many octets, c is a count of octets to
// read, d that of READDIR, and a is sattr3. Items that have no lengths are left out at the end.
var arguments = map[uint32][]string{
	nfsProgram: {
		"", "o", "oa", "oo", "o", "o", "o8c", "o844o", "oo", "oo", "ooao", "oo",
		"oo", "oo", "oooo", "ooo", "o88d", "o88cc", "o", "o", "o", "o",
	},
	mountProgram: {"", "o", "", "o", "", ""},
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

// arguments steps over items. It lowers counts of octets to read to maxRead: a server may return less than a client
// asks for.
func (w *walk) arguments(items string) {
	for _, item := range items {
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
			w.count(0)
		case 'd':
			w.count(oneEntry)
		case 'a':
			w.attributes()
		}
	}
}

// count steps over a count of octets to read. It raises a count from least on to minReadDir, unless least is 0.
func (w *walk) count(least uint32) {
	b := w.skip(4)
	n := binary.BigEndian.Uint32(b)
	if least > 0 && n >= least {
		n = max(n, minReadDir)
	}
	binary.BigEndian.PutUint32(b, min(n, maxRead))
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
