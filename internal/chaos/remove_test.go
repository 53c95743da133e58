package chaos

import (
	"encoding/binary"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// Calls that a duplicate request cache can confuse
//
// A server recognises a repeated Call by its XID and its arguments. The arguments of other Calls
// here have the Call's number, so that the server never takes one for another. Two REMOVEs of
// one name, by two clients, have the same arguments: if the bridge gives them the same XID, the
// server answers the second from the execution of the first. The number of a REMOVE is in the stamp
// of its credential, at which neither the server's cache nor the bridge looks, and its Reply
// says whose REMOVE the server has executed.

// names is how many names there are to remove. Clients that choose the same XIDs remove the same
// names. Two REMOVEs of one name get the same XID by chance once in 2^32 pairs: with a million
// REMOVEs at one server in two runs of a thousand.
const names = 65536

// newRemove is the REMOVE with the number id.
func newRemove(xid, id uint32) []byte {
	b := proxytest.CallHeader(nil, xid, oncrpc.ProgramNFS, 3, 12)
	binary.BigEndian.PutUint32(b[stampAt:], id)
	b = testkit.AppendOpaque(b, []byte("the handle of a directory..."))
	return testkit.AppendOpaque(b, fmt.Appendf(nil, "name %d", xid%names))
}

// stampAt is the offset of the credential's stamp, behind the flavor and the length.
const stampAt = 24 + 8

// replyTo returns the Reply that a correct server and bridge give to the Call m.
func replyTo(m []byte) []byte {
	var c oncrpc.Call
	if err := oncrpc.ParseCall(m, &c); err != nil {
		return nil
	}
	switch k, id, err := look(&c); {
	case err == nil && k == remove:
		return removeReply(c.XID, id, proxytest.Checksum(m[c.Args:]))
	case err == nil && k.compound():
		return compoundReply(&c, k)
	case err == nil && k == hung:
		b := testkit.Words(c.XID, 1, 0, 0, 0, 0, 0, 0)
		return append(b, testkit.Pattern(52, proxytest.Checksum(m[c.Args:]))...)
	}
	return proxytest.Expected(m)
}

// removeReply is the Reply to a REMOVE: the directory's attributes before it are the number of the
// REMOVE that was executed, and the checksum of its arguments.
func removeReply(xid, id, sum uint32) []byte {
	b := testkit.Words(xid, 1, 0, 0, 0, 0, 0, 1, id, sum)
	return testkit.AppendWords(append(b, testkit.Pattern(16, id)...), 0)
}

// executedFor returns the number of the REMOVE that was executed, if m is the Reply to one.
func executedFor(m []byte) (id uint32, ok bool) {
	if len(m) != 60 {
		return 0, false
	}
	return binary.BigEndian.Uint32(m[32:]), string(m[40:56]) == string(testkit.Pattern(16, binary.BigEndian.Uint32(m[32:])))
}
