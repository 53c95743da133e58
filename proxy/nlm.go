package proxy

import (
	"encoding/binary"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Locks of NFSv3
//
// NLM names the owner of a lock by the host that asks and svid, a number that the
// host has for one of its processes; servers take the address that a Call comes from
// for the host. Here all clients come from one address, and Linux clients count svid
// from 0: two of them would be one owner, and each would be granted what the other
// has locked. So svid is exchanged for 31 bits of a hash of (client address,
// caller_name, svid). It follows from nothing else, and so is the same for the
// UNLOCK of a client that came back on another connection or to another process of
// ours. Two owners that wait for each other share their 31 bits once in 2^31.
//
// The holder's svid in the Reply to TEST stays the server's: it is somebody else's.
//
// What is under RPCSEC_GSS integrity or privacy cannot be changed and is not.
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

// nlmRefused reports that Call h of NLM would not do here what it is meant to.
//
// GRANTED tells a client that it has the lock that it waits for. The server that
// sends it means one of our clients, and cannot say which; sent on, it would come
// to the server itself. The procedures ending in _MSG are answered by a Call in the
// other direction, _RES, which does not find its way for the same reason. Refused,
// clients know at once, and servers ask again later.
//
// FREE_ALL drops every lock of the host that asks, which here are those of all
// clients, and so does SM_NOTIFY, which is for the server's own statd.
func nlmRefused(h *oncrpc.Call) bool {
	return h.Procedure >= nlmGranted && h.Procedure <= nlmNotify || h.Procedure == nlmFreeAll
}

// nlmOwner makes the lock owner in Call h of NLM one that no other client has. It
// leaves alone what names none or cannot be walked, which is for the server to refuse.
func nlmOwner(h *oncrpc.Call, client netip.Addr) {
	if h.Protection != oncrpc.ProtectNone {
		return
	}
	words := 0 // between cookie and lock
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
	hash := fnv(fnv(fnvBasis, addr[:]), h.Message[name:name+n])
	hash = fnv(hash, binary.BigEndian.AppendUint32(addr[:0], svid))
	// Some take it for a pid_t: not negative.
	binary.BigEndian.PutUint32(h.Message[at:], uint32(mix(hash)>>33))
}
