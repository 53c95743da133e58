package chaos

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// A kind is a sort of Call. Its arguments begin with, or hold, the Call's number.
type kind uint8

const (
	getattr      kind = iota // reads: may be replayed at will
	read                     // reads: data placed directly
	write                    // may be repeated: data fetched directly
	sequence                 // of NFSv4.1 or 4.2, in the session of its client: may be replayed
	bind                     // BIND_CONN_TO_SESSION: has the server call the client on this connection; may be repeated
	hungSequence             // a sequence that does not answer while its server is sick
	hung                     // reads: FSSTAT of a file system that does not answer while it is sick
	mkdir                    // must not be executed twice
	remove                   // must not be executed twice: only its user's stamp says whose it is
	echo                     // of a program that the bridge does not know: must not be executed twice
	echoGSS                  // its XID is signed: never replayed
	kinds
)

var kindNames = [kinds]string{"GETATTR", "READ", "WRITE", "SEQUENCE", "BIND_CONN_TO_SESSION", "hanging SEQUENCE", "FSSTAT", "MKDIR", "REMOVE", "echo", "echo under GSS"}

func (k kind) String() string { return kindNames[k] }

// compound Calls are COMPOUNDs of NFSv4.1 or 4.2.
func (k kind) compound() bool { return k == sequence || k == bind || k == hungSequence }

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
		return proxytest.GetattrCallOf(xid, tagged(id, 32))
	case read:
		return proxytest.ReadCall(xid, uint64(id), uint32(n))
	case write:
		return proxytest.WriteCall(xid, uint64(id), n)
	case sequence, bind, hungSequence:
		return newCompound(k, newSession(id), xid, id)
	case hung:
		return testkit.AppendOpaque(proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 18), tagged(id, 32))
	case mkdir:
		return proxytest.MkdirCall(xid, string(tagged(id, 8+n%120)))
	case remove:
		return newRemove(xid, id)
	case echo:
		// Half of the data goes out and half comes back.
		return proxytest.EchoCallOf(xid, tagged(id, n-n/2), n/2, 0)
	case echoGSS:
		return proxytest.GSSCall(newCall(echo, xid, id, n), id, 1)
	}
	panic("unreachable")
}

// A procedure is one that newCall calls, and says where its arguments hold the number of
// the Call.
type procedure struct {
	kind                        kind
	program, version, procedure uint32
	from                        from
	at                          int // octets from there
}

// from is where counting begins to the number of a Call.
type from uint8

const (
	arguments from = iota
	behind         // behind the file handle with which the arguments begin
	user           // in the body of the credential
)

var procedures = [...]procedure{
	{getattr, oncrpc.ProgramNFS, 3, 1, arguments, 4},  // in the file handle
	{hung, oncrpc.ProgramNFS, 3, 18, arguments, 4},    // in the file handle
	{read, oncrpc.ProgramNFS, 3, 6, behind, 4},        // the low half of the offset
	{write, oncrpc.ProgramNFS, 3, 7, behind, 4},       // the low half of the offset
	{mkdir, oncrpc.ProgramNFS, 3, 9, behind, 4},       // in the name
	{remove, oncrpc.ProgramNFS, 3, 12, user, 0},       // the stamp
	{sequence, oncrpc.ProgramNFS, 4, 1, arguments, 4}, // in the tag; bind likewise
	{echo, proxytest.EchoProgram, proxytest.EchoVersion, proxytest.EchoProc, arguments, 12},
}

// look finds the kind and number of a Call that newCall made.
func look(c *oncrpc.Call) (k kind, id uint32, err error) {
	i := slices.IndexFunc(procedures[:], func(p procedure) bool {
		return p.program == c.Program && p.version == c.Version && p.procedure == c.Procedure
	})
	if i >= 0 {
		id, ok := procedures[i].number(c)
		k = procedures[i].kind
		if ok && (k != sequence || isCompound(c)) {
			switch {
			case k == echo && c.Flavor == oncrpc.FlavorGSS:
				k = echoGSS
			case k == sequence:
				k = compoundKind(c)
			}
			return k, id, nil
		}
	}
	return 0, 0, fmt.Errorf("program %#x version %d procedure %d with %d octets of arguments is no Call of a client here", c.Program, c.Version, c.Procedure, len(c.Message)-c.Args)
}

// number returns the number of the Call c.
func (p *procedure) number(c *oncrpc.Call) (id uint32, ok bool) {
	b, at := c.Message[c.Args:], p.at
	switch p.from {
	case arguments:
	case behind:
		if len(b) < 4 {
			return 0, false
		}
		n := binary.BigEndian.Uint32(b)
		if n > 1<<20 {
			return 0, false
		}
		at += 4 + int(n+3)&^3
	case user:
		b = c.Message[oncrpc.CredentialPos:][:c.CredentialLen]
	}
	if at+4 > len(b) {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[at:]), true
}

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
	case n < 86:
		k = mkdir
	case n < 93:
		k = remove
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
