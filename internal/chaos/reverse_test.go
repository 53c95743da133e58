package chaos

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// The back channel
//
// A server may call the client whose SEQUENCE came on a connection, on that connection:
// its Call names the session and the number of that SEQUENCE, so that a client sees a Call for
// another one. The client's answer is a function of the Call. The answer comes back on the same
// connection, unless the connection has ended or the client did not answer; an answer of
// the bridge's own is an error, or asks the server to try later.

// reverseAt is where the number is in the arguments of a newReverse: behind the tag of four octets,
// the minor version, the callback_ident, the count, CB_SEQUENCE with its arguments, the number of
// CB_RECALL, its stateid, truncate, and the length of the file handle.
const reverseAt = 8 + 12 + 4 + 16 + 4*4 + 4 + 4 + 16 + 4 + 4

// newReverse is a Call of a server, to the client that sent the SEQUENCE with the number id in that
// session: CB_SEQUENCE, and a CB_RECALL of a file whose handle has about n octets.
func newReverse(xid, id uint32, session nfs.SessionID, n int) []byte {
	b := proxytest.CallHeader(nil, xid, proxytest.CallbackProgram, 1, 1)
	b = testkit.AppendOpaque(b, reverseTag(xid))
	b = testkit.AppendWords(b, 1+id%2, 0, 2, 11)
	b = append(b, session[:]...)
	b = testkit.AppendWords(b, id, 0, 0, 0, 0)
	b = testkit.AppendWords(b, 4)
	b = append(b, testkit.Pattern(16, id)...)
	return testkit.AppendOpaque(testkit.AppendWords(b, 0), tagged(id, n))
}

// reverseTag is the tag of the Call of a server with that XID.
func reverseTag(xid uint32) []byte { return testkit.Words(^xid) }

// reverseID is the session and the number in a Call that newReverse made.
func reverseID(m []byte) (session nfs.SessionID, id uint32, ok bool) {
	var c oncrpc.Call
	if oncrpc.ParseCall(m, &c) != nil || len(m) < c.Args+reverseAt+4 {
		return session, 0, false
	}
	args := m[c.Args:]
	session = nfs.SessionID(args[8+12+4:])
	n, id := binary.BigEndian.Uint32(args[reverseAt-4:]), binary.BigEndian.Uint32(args[reverseAt:])
	return session, id, n < 2048 && bytes.Equal(m, newReverse(c.XID, id, session, int(n)))
}

// reverseLater is the Reply that asks a server to send a Call with that XID again later: the
// CB_COMPOUND, and in it the CB_SEQUENCE, has failed with NFS4ERR_DELAY.
func reverseLater(xid uint32) []byte {
	const delay = 10008
	b := testkit.AppendOpaque(testkit.Words(xid, 1, 0, 0, 0, 0, delay), reverseTag(xid))
	return testkit.AppendWords(b, 1, 11, delay)
}

// reverseReply is a client's Reply to m.
func reverseReply(m []byte) []byte {
	sum := proxytest.Checksum(m)
	b := make([]byte, sum%512)
	testkit.FillPattern(b, sum)
	return testkit.AppendOpaque(testkit.Words(binary.BigEndian.Uint32(m), 1, 0, 0, 0, 0), b)
}

// reverseCredits is how many Calls a server has under way on a connection.
const reverseCredits = 4

// reverses are the Calls of a server on one connection. The goroutine that writes to it owns them.
type reverses struct {
	s    *server
	conn uint32             // the connection's number among those of all servers
	xid  uint32             // of the latest
	few  uint32             // of the latest among those that connections have in common, or 0: not on this connection
	most int                // how many may be without an answer
	open map[uint32]reverse // by XID
}

// A reverse is a Call of a server that has no answer.
type reverse struct {
	m    []byte
	kept bool // the bridge has the client on a lane
}

// newReverses are those of a new connection of s. Each begins with a random XID, as Linux does. On half of
// the connections, clients on lanes are called under XIDs that these connections have in common, so that
// two connections call one client under one XID.
func newReverses(s *server, dice *rand.Rand) reverses {
	return reverses{
		s: s, conn: s.book.conns.Add(1), most: 1, open: make(map[uint32]reverse),
		xid: commonXIDs + dice.Uint32N(1<<31), few: dice.Uint32N(2),
	}
}

// commonXIDs is how many XIDs connections have in common.
const commonXIDs = 1 << 20

// next is the XID of the next Call, to the client of j.
func (r *reverses) next(j *job) uint32 {
	if r.few > 0 && j.kept {
		r.few++
		return r.few
	}
	r.xid++
	return r.xid
}

// took notes that the job j has come on the connection.
func (r *reverses) took(j *job) {
	if j.kind.compound() {
		j.kept = r.s.book.carried(r.s, r.conn, j)
	}
}

// draw is a Call to the client that sent the SEQUENCE j on this connection, or nil.
// RFC 8167 Section 4.1 allows one at a time before an answer.
func (r *reverses) draw(dice *rand.Rand, j *job) []byte {
	if j.kind != sequence || len(r.open) >= r.most || dice.IntN(3) > 0 {
		return nil
	}
	xid := r.next(j)
	m := newReverse(xid, j.id, j.session, dice.IntN(700))
	r.open[xid] = reverse{m, j.kept}
	r.s.book.reversed.Add(1)
	return m
}

// answered checks m, which came as a Reply.
func (r *reverses) answered(m []byte) {
	book := r.s.book
	xid := binary.BigEndian.Uint32(m)
	call, ok := r.open[xid]
	delete(r.open, xid)
	r.most = reverseCredits
	switch {
	case !ok:
		book.wrong("a server's Call %#x is answered on a connection that it was not made on, or twice", xid)
	case bytes.Equal(m, reverseReply(call.m)):
		book.reverseDone.Add(1)
	case isError(m):
		book.reverseFailed.Add(1)
	case bytes.Equal(m, reverseLater(xid)):
		book.reverseDelayed.Add(1)
	case bytes.Equal(m, oncrpc.AppendAccepted(nil, xid, oncrpc.ProgramUnavailable)):
		book.reverseUnavailable.Add(1)
		if call.kept {
			book.wrong("a server's Call %#x is answered with PROG_UNAVAIL on a connection that carries the client's sessions", xid)
		}
	default:
		book.wrong("a server's Call %#x on its connection %d is answered with %d other octets: %x", xid, r.conn, len(m), m[:min(len(m), 64)])
	}
}

// called takes a Call of the server at a client.
func (c *client) called(l line, m []byte) {
	session, id, ok := reverseID(m)
	switch {
	case !ok:
		c.book.wrong("%s: a server's Call of %d octets is none that was made: %x", c.name, len(m), m[:min(len(m), 64)])
		return
	case session != c.session:
		c.book.wrong("%s: a server's Call for the session %x, which is another client's", c.name, session)
		return
	case !c.sequences[id]:
		c.book.wrong("%s: a server's Call for the sender of %#x, which is another client", c.name, id)
		return
	}
	switch n := c.dice.IntN(40); {
	case c.health != nil:
		l.answer(reverseReply(m))
	case n == 0: // no answer
	case n == 1 && proxytest.XID(m) > commonXIDs:
		l.answer(reverseReply(m))
		l.answer(reverseReply(m)) // the second one answers no Call
	case n == 2:
		o := reverseReply(m)
		binary.BigEndian.PutUint32(o, c.dice.Uint32()|1<<31)
		l.answer(o) // it answers no Call
	default:
		l.answer(reverseReply(m))
	}
}
