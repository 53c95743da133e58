package chaos

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A kind is a sort of Call. Its arguments begin with, or hold, the Call's number.
type kind uint8

const (
	getattr  kind = iota // reads: may be replayed at will
	read                 // reads: data placed directly
	write                // may be repeated: data fetched directly
	sequence             // of NFSv4.2: gives its connection one to the server; may be replayed
	mkdir                // must not be executed twice
	echo                 // of a program that the bridge does not know: must not be executed twice
	echoGSS              // its XID is signed: never replayed
	kinds
)

var kindNames = [kinds]string{"GETATTR", "READ", "WRITE", "SEQUENCE", "MKDIR", "echo", "echo under GSS"}

func (k kind) String() string { return kindNames[k] }

// harmful Calls must not be executed twice.
func (k kind) harmful() bool { return k >= mkdir }

// tagged is n octets, at least 4, that begin with id and go on with its pattern.
func tagged(id uint32, n int) []byte {
	b := make([]byte, max(n, 4))
	testkit.FillPattern(b, id)
	binary.BigEndian.PutUint32(b, id)
	return b
}

// newCall is the Call of the kind given with the number id and about n octets of
// data, in its arguments or its results.
func newCall(k kind, xid, id uint32, n int) []byte {
	switch k {
	case getattr:
		return testkit.AppendOpaque(proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 1), tagged(id, 32))
	case read:
		return proxytest.ReadCall(xid, uint64(id), uint32(n))
	case write:
		return proxytest.WriteCall(xid, uint64(id), n)
	case sequence:
		var session [16]byte
		binary.BigEndian.PutUint32(session[:], id)
		return proxytest.CompoundCall(xid, 2, proxytest.Sequence(session, xid, xid%64))
	case mkdir:
		b := testkit.AppendOpaque(proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 9), []byte("a directory's handle"))
		b = testkit.AppendOpaque(b, tagged(id, 8+n%120))
		return testkit.AppendWords(b, 0, 0, 0, 0, 0, 0)
	case echo, echoGSS:
		// Half of the data goes out and half comes back.
		b := proxytest.CallHeader(nil, xid, proxytest.EchoProgram, proxytest.EchoVersion, proxytest.EchoProc)
		b = testkit.AppendOpaque(testkit.AppendWords(b, uint32(n/2), 0), tagged(id, n-n/2))
		if k == echoGSS {
			b = proxytest.GSSCall(b, id, 1)
		}
		return b
	}
	panic("unreachable")
}

// look finds the kind and number of a Call that newCall made.
func look(c *oncrpc.Call) (k kind, id uint32, err error) {
	args := c.Message[c.Args:]
	at := func(i int) (uint32, bool) {
		if i < 0 || i+4 > len(args) {
			return 0, false
		}
		return binary.BigEndian.Uint32(args[i:]), true
	}
	// behind is where the opaque at i ends.
	behind := func(i int) int {
		n, ok := at(i)
		if !ok || n > 1<<20 {
			return -1
		}
		return i + 4 + int(n+3)&^3
	}
	ok := false
	switch {
	case c.Program == oncrpc.ProgramNFS && c.Version == 3 && c.Procedure == 1:
		k = getattr
		id, ok = at(4)
	case c.Program == oncrpc.ProgramNFS && c.Version == 3 && c.Procedure == 6:
		k = read
		id, ok = at(behind(0) + 4)
	case c.Program == oncrpc.ProgramNFS && c.Version == 3 && c.Procedure == 7:
		k = write
		id, ok = at(behind(0) + 4)
	case c.Program == oncrpc.ProgramNFS && c.Version == 3 && c.Procedure == 9:
		k = mkdir
		id, ok = at(behind(0) + 4)
	case c.Program == oncrpc.ProgramNFS && c.Version == 4 && c.Procedure == 1:
		k = sequence
		id, ok = at(16)
	case c.Program == proxytest.EchoProgram && c.Procedure == proxytest.EchoProc:
		k = echo
		if c.Flavor == oncrpc.FlavorGSS {
			k = echoGSS
		}
		id, ok = at(12)
	}
	if !ok {
		return 0, 0, fmt.Errorf("program %#x version %d procedure %d with %d octets of arguments is no Call of a client here", c.Program, c.Version, c.Procedure, len(args))
	}
	return k, id, nil
}

// replyTo is the Reply of a correct server: a function of the Call alone.
func replyTo(c *oncrpc.Call, k kind) []byte {
	sum := proxytest.Checksum(c.Message[c.Args:])
	switch k {
	case getattr:
		attr := make([]byte, 84)
		testkit.FillPattern(attr, sum)
		return append(testkit.Words(c.XID, 1, 0, 0, 0, 0, 0), attr...)
	case mkdir:
		fh := make([]byte, 32)
		testkit.FillPattern(fh, sum)
		return testkit.AppendWords(testkit.AppendOpaque(testkit.Words(c.XID, 1, 0, 0, 0, 0, 0, 1), fh), 0, 0, 0)
	default:
		return proxytest.Expected(c.Message)
	}
}

// wanted is the Reply to the Call m.
func wanted(m []byte, k kind) []byte {
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		panic(err)
	}
	return replyTo(&c, k)
}

// readData is where the data of a READ's successful Reply begin.
const readData = 24 + 4 + 4 + 84 + 4 + 4 + 4

// randomCall draws a Call. Most are small, as on a file server.
func randomCall(r *rand.Rand, xid, id uint32, gss, v4 bool) (kind, []byte) {
	var k kind
	switch n := r.IntN(100); {
	case n < 35:
		k = getattr
	case n < 57:
		k = read
	case n < 75:
		k = write
	case n < 93:
		k = mkdir
	default:
		k = echo
	}
	if gss && r.IntN(4) == 0 {
		k = echoGSS
	}
	if v4 && r.IntN(3) > 0 {
		k = sequence
	}
	n := 0
	switch d := r.IntN(100); {
	case d < 30:
		n = r.IntN(64)
	case d < 70:
		n = r.IntN(4096)
	case d < 97:
		n = r.IntN(32 << 10)
	case d < 99:
		n = r.IntN(256 << 10)
	default:
		n = r.IntN(1<<20 + 1)
	}
	return k, newCall(k, xid, id, n)
}

// isError reports a Reply of a server or proxy that says no more than that it
// failed: accepted, SYSTEM_ERR.
func isError(m []byte) bool {
	return len(m) == 24 && binary.BigEndian.Uint32(m[4:]) == 1 && binary.BigEndian.Uint32(m[8:]) == 0 &&
		binary.BigEndian.Uint32(m[20:]) == oncrpc.SystemError
}
