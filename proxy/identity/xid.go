package identity

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// XIDs on the far side
//
// A server's duplicate request cache sees all clients of the bridge at one address, so the XIDs
// of all clients share one name space. If several bridges have one address, like sidecars behind
// the address of their node, the clients of all of them share it. Two Calls with one XID and the
// same arguments are one Call to the server. It executes the first, and answers the other from
// its memory.
//
// So the proxy gives each Call another XID, which follows from the client's XID by a keyed
// permutation (permutation.go). The key is made of the bridge's identity (bridge.go), the upstream, what a
// server would know the client by (origin.go), and the credential (user.go). The number that is
// permuted is the client's XID, combined with a hash of the procedure and of the beginning of the
// arguments. This has four consequences:
//
//   - A retransmission has the XID of the first transmission, on any connection of the same origin
//     and from the next process of the bridge. Nobody has to remember anything for that.
//   - Calls of one user of one client with the same arguments have different XIDs if the client
//     gave them different XIDs. These are the Calls that a duplicate request cache would
//     confuse.
//   - All other Calls meet only by chance, one pair in 2^32: those of two clients or bridges, of two
//     processes of one host, of two users of one client, and Calls with different arguments. So a client that repeats
//     the XID and the arguments of another user's Call is not answered from that Call. And a
//     hundred clients behind one address that use the same XIDs at the same time do not get in
//     each other's way.
//   - An attacker that does not know the identity cannot aim at the XIDs of others.
//
// Under RPCSEC_GSS the XID is signed and stays as it is.
//
// A connection cannot carry two Calls with one XID. When two Calls meet on one connection,
// the proxy finds another connection, or another time, for the second. The Calls that are
// in flight are remembered, so that a retransmission does not reach the server while the first
// transmission is there: flights.go.

// XIDs makes the XIDs of the bridge's own Calls, and other XIDs for Calls that need one. It is safe for concurrent
// use.
type XIDs struct {
	own     permutation // constant
	counted atomic.Uint32
}

// NewXIDs returns an XIDs with a key of its own.
func NewXIDs() *XIDs {
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails
	return &XIDs{own: newPermutation(key[:])}
}

// Fresh returns an XID for a Call that the bridge itself makes and that no server remembers, such
// as NULL. The XIDs of one process are all different, and differ from those of other processes,
// as from those of clients, except by chance.
func (x *XIDs) Fresh() uint32 { return x.own.of(x.counted.Add(1)) }

// Another returns an XID that follows from xid and has nothing to do with it.
func (x *XIDs) Another(xid uint32) uint32 { return x.own.of(xid) }

// hashedArguments is how many octets of the arguments an XID depends on, as many as the Linux
// server's duplicate request cache compares.
const hashedArguments = 256

// xidOf returns the XID that the upstream sees of the Call h, whose user has the key p.
func xidOf(p permutation, h *oncrpc.Call) uint32 {
	return p.of(h.XID ^ argumentsHash(p.a, h))
}

// argumentsHash hashes what h asks for. It is the same in every process. An attacker gains
// nothing from two arguments with one hash, because both are its own Calls.
func argumentsHash(seed uint64, h *oncrpc.Call) uint32 {
	args := h.Message[h.Args:]
	n := uint64(len(args))
	x := fold(seed^n, uint64(h.Program)<<32|uint64(h.Version)<<16^uint64(h.Procedure)^roundA)
	args = args[:min(len(args), hashedArguments)]
	at := 0
	for ; at+16 <= len(args); at += 16 {
		b := args[at : at+16 : at+16]
		x = fold(x^binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])^roundB)
	}
	if at < len(args) {
		var last [16]byte
		copy(last[:], args[at:])
		x = fold(x^binary.LittleEndian.Uint64(last[:]), binary.LittleEndian.Uint64(last[8:])^roundC)
	}
	return uint32(x ^ x>>32)
}

// SignsXID reports whether the flavor of h has the XID under a checksum, or may have it.
func SignsXID(h *oncrpc.Call) bool {
	switch h.Flavor {
	case oncrpc.FlavorNone, oncrpc.FlavorSys, oncrpc.FlavorShort, oncrpc.FlavorDH:
		return false
	}
	return true
}
