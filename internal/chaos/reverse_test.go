package chaos

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// The back channel
//
// A server may call the client whose SEQUENCE came on a connection, on that connection:
// its Call names the number of that SEQUENCE, so that a client sees a Call for another
// one. The client's answer is a function of the Call. The answer comes back on the same
// connection, unless the connection has ended or the client did not answer; an answer of
// the bridge's own is an error.

// newReverse is a Call of a server, to the client that sent the SEQUENCE with the number id.
func newReverse(xid, id uint32, n int) []byte {
	return testkit.AppendOpaque(proxytest.CallHeader(nil, xid, proxytest.CallbackProgram, 1, 1), tagged(id, n))
}

// reverseID is the number in a Call that newReverse made.
func reverseID(m []byte) (id uint32, ok bool) {
	var c oncrpc.Call
	if oncrpc.ParseCall(m, &c) != nil || len(m) < c.Args+8 {
		return 0, false
	}
	n, id := binary.BigEndian.Uint32(m[c.Args:]), binary.BigEndian.Uint32(m[c.Args+4:])
	return id, n < 2048 && bytes.Equal(m, newReverse(c.XID, id, int(n)))
}

// reverseReply is a client's Reply to m.
func reverseReply(m []byte) []byte {
	sum := proxytest.Checksum(m)
	b := make([]byte, sum%512)
	testkit.FillPattern(b, sum)
	return testkit.AppendOpaque(testkit.Words(binary.BigEndian.Uint32(m), 1, 0, 0, 0, 0), b)
}

// reverses are the Calls of a server on one connection. The goroutine that writes to it owns them.
type reverses struct {
	s    *server
	open map[uint32][]byte // by XID
}

// draw is a Call to the client that sent the SEQUENCE j on this connection, or nil.
// RFC 8167 Section 4.1 allows one at a time before an answer.
func (r *reverses) draw(dice *rand.Rand, j *job) []byte {
	if j.kind != sequence || j.id == 0 || len(r.open) > 0 || dice.IntN(3) > 0 {
		return nil
	}
	m := newReverse(r.s.reverse.Add(1), j.id, dice.IntN(700))
	if r.open == nil {
		r.open = make(map[uint32][]byte)
	}
	r.open[binary.BigEndian.Uint32(m)] = m
	r.s.book.reversed.Add(1)
	return m
}

// answered checks m, which came as a Reply.
func (r *reverses) answered(m []byte) {
	book := r.s.book
	xid := binary.BigEndian.Uint32(m)
	call := r.open[xid]
	delete(r.open, xid)
	switch {
	case call == nil:
		book.wrong("a server's Call %#x is answered on a connection that it was not made on, or twice", xid)
	case bytes.Equal(m, reverseReply(call)):
		book.reverseDone.Add(1)
	case isError(m):
		book.reverseFailed.Add(1)
	case bytes.Equal(m, oncrpc.AppendAccepted(nil, xid, oncrpc.ProgramUnavailable)):
		book.reverseUnavailable.Add(1)
	default:
		book.wrong("a server's Call %#x is answered with %d other octets: %x", xid, len(m), m[:min(len(m), 64)])
	}
}

// called takes a Call of the server at a client.
func (c *client) called(l line, m []byte) {
	id, ok := reverseID(m)
	switch {
	case !ok:
		c.book.wrong("%s: a server's Call of %d octets is none that was made: %x", c.name, len(m), m[:min(len(m), 64)])
		return
	case !c.sequences[id]:
		c.book.wrong("%s: a server's Call for the sender of %#x, which is another client", c.name, id)
		return
	}
	switch n := c.dice.IntN(20); n {
	case 0: // no answer
	case 1:
		l.answer(reverseReply(m))
		l.answer(reverseReply(m)) // the second one answers no Call
	case 2:
		o := reverseReply(m)
		binary.BigEndian.PutUint32(o, c.dice.Uint32())
		l.answer(o) // it answers no Call
	default:
		l.answer(reverseReply(m))
	}
}
