package chaos

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// Sessions
//
// A client that speaks NFSv4.1 has one session, which it uses on all of its connections. The
// servers know every session. The number of a COMPOUND is its tag. A server's Reply to one is a
// function of it, and says what a server's would: the bridge reads it.

const (
	opSequence          = 53
	opBindConnToSession = 41
	dirForeOrBoth       = 3                 // CDFC4_FORE_OR_BOTH
	dirBoth             = 3                 // CDFS4_BOTH
	compoundSession     = 4 + 4 + 4 + 4 + 4 // behind the tag, the minor version, the count and the operation
	sequenceArgs        = 16 + 4*4
)

// newSession is session number n.
func newSession(n uint32) (id nfs.SessionID) {
	testkit.FillPattern(id[:], n)
	binary.BigEndian.PutUint32(id[12:], n)
	return id
}

// newCompound is the Call of kind sequence, hungSequence or bind with the number id, in the given session.
func newCompound(k kind, session nfs.SessionID, xid, id uint32) []byte {
	b := proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 4, 1)
	b = testkit.AppendWords(b, 4, id, 1+id%2, 1)
	switch k {
	case sequence:
		return append(b, proxytest.Sequence(session, xid, xid%64)...)
	case hungSequence:
		b = append(b, proxytest.Sequence(session, xid, xid%64)...)
		binary.BigEndian.PutUint32(b[len(b)-4:], 1) // sa_cachethis
		return b
	}
	b = append(testkit.AppendWords(b, opBindConnToSession), session[:]...)
	return testkit.AppendWords(b, dirForeOrBoth, 0)
}

// isCompound reports whether c is as long as what newCompound makes.
func isCompound(c *oncrpc.Call) bool { return len(c.Message)-c.Args >= compoundSession+24 }

// compoundKind is the kind of c, which is as long.
func compoundKind(c *oncrpc.Call) kind {
	b := c.Message[c.Args:]
	switch {
	case binary.BigEndian.Uint32(b[compoundSession-4:]) == opBindConnToSession:
		return bind
	case len(b) >= compoundSession+sequenceArgs && binary.BigEndian.Uint32(b[compoundSession+28:]) != 0:
		return hungSequence
	}
	return sequence
}

// sessionOf is the session of c, which newCompound made.
func sessionOf(c *oncrpc.Call) nfs.SessionID {
	return nfs.SessionID(c.Message[c.Args+compoundSession:])
}

// compoundReply is the Reply to c, which newCompound made.
func compoundReply(c *oncrpc.Call, k kind) []byte {
	args, session := c.Message[c.Args:], sessionOf(c)
	b := append(testkit.Words(c.XID, 1, 0, 0, 0, 0, 0), args[:8]...)
	if k == bind {
		b = append(testkit.AppendWords(b, 1, opBindConnToSession, 0), session[:]...)
		return testkit.AppendWords(b, dirBoth, 0)
	}
	b = append(testkit.AppendWords(b, 1, opSequence, 0), session[:]...)
	b = append(b, args[compoundSession+16:compoundSession+24]...) // sequenceid and slotid
	return testkit.AppendWords(b, 63, 63, proxytest.Checksum(args))
}
