package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Locks of NFSv3
//
// NLM names the owner of a lock by its host and by svid, a number that the host gives to one of
// its processes. Servers identify the host by the address that the Call comes from. Behind the
// bridge all clients have one address, and Linux clients count svid from 0. So two clients
// would be one owner, and the server would grant each the locks of the other. The proxy
// therefore replaces svid by 31 bits of a keyed hash of the client's address, caller_name and
// svid. The key is the bridge's identity, and the hash depends on nothing else. So the UNLOCK
// of a client that has reconnected, even to another process of the bridge, names the same
// owner. Two given owners have the same 31 bits once in 2^31. A client that does not know the
// identity cannot find out with which caller_name and svid it would be another client's owner.
//
// The svid in the Reply to TEST stays the server's, because it names another owner.
//
// The proxy cannot change Calls under RPCSEC_GSS integrity or privacy, and leaves them alone.
// Linux uses neither for NLM.

// Procedures of NLM, X/Open XNFS Chapter 10, the same in every version.
const (
	nlmTest       = 1
	nlmLock       = 2
	nlmCancel     = 3
	nlmUnlock     = 4
	nlmGranted    = 5
	nlmGrantedRes = 15
	nlmNotify     = 16
	nlmNMLock     = 22
	nlmFreeAll    = 23
)

// RefusesNLM reports whether the Call h of NLM cannot work through the bridge.
//
// GRANTED tells a client that it has the lock that it waited for. The server that sends it
// means one of the bridge's clients, but cannot say which, and the proxy would send the Call to
// the server itself. The procedures that end in _MSG are answered by a Call in the other
// direction, _RES, which has the same problem. When the proxy refuses these Calls, clients
// know at once, and servers ask again later.
//
// FREE_ALL drops every lock of the calling host, which behind the bridge means the locks of all
// clients. SM_NOTIFY, which is for the server's own statd, does the same.
func RefusesNLM(h *oncrpc.Call) bool {
	return h.Procedure >= nlmGranted && h.Procedure <= nlmNotify || h.Procedure == nlmFreeAll
}

// LockOwner replaces the lock owner in the Call h of NLM by one that no other client has. It
// leaves a Call alone that names no owner, or that cannot be walked: the server refuses that.
func (b *Bridge) LockOwner(h *oncrpc.Call, client netip.Addr) {
	if h.Protection != oncrpc.ProtectNone {
		return
	}
	words := 0 // XDR words between cookie and lock
	switch h.Procedure {
	case nlmTest:
		words = 1 // exclusive
	case nlmLock, nlmCancel, nlmNMLock:
		words = 2 // block, exclusive
	case nlmUnlock:
	default:
		return
	}
	// The lock is caller_name, fh, oh, svid, l_offset, l_len.
	c := xdr.NewCursor(h.Message, h.Args)
	c.Opaque()
	c.Skip(4 * words)
	name, n := c.Opaque()
	c.Opaque()
	c.Opaque()
	at := c.Pos()
	svid := c.Uint32()
	if !c.OK() {
		return
	}
	addr := client.As16()
	// The key comes first, and nobody sees enough of the result to continue the hash.
	var buf [256]byte
	m := append(buf[:0], b[:]...)
	m = append(m, "nlm"...)
	m = append(m, addr[:]...)
	m = binary.BigEndian.AppendUint32(m, svid)
	m = append(m, h.Message[name:name+n]...)
	hash := sha256.Sum256(m)
	// Some servers take svid for a pid_t, which is not negative.
	binary.BigEndian.PutUint32(h.Message[at:], binary.BigEndian.Uint32(hash[:])>>1)
}
