package oncrpc

import (
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// Bounds of authsys_parms. RFC 5531 Appendix A.
const (
	maxMachineName = 255
	maxSysGroups   = 16
)

// SysIDs is the most octets of the numbers in a SysCredential.
const SysIDs = 12 + 4*maxSysGroups

// A SysCredential is the body of an AUTH_SYS credential, viewed in place:
//
//	stamp, machinename<255>, uid, gid, gids<16>
//
// RFC 5531 Appendix A.
type SysCredential struct {
	ids    []byte // uid, gid, count, gids
	groups int
}

// Sys returns the credential of c, which then borrows the message. ok is false when c has another flavor, and
// when the body is not exactly what AUTH_SYS has. Some servers ignore the length of the body and read on in the
// message, so a body that ends elsewhere could tell such a server something else.
func (c *Call) Sys() (s SysCredential, ok bool) {
	if c.Flavor != FlavorSys {
		return s, false
	}
	b := c.Message[CredentialPos:][:c.CredentialLen]
	if len(b) < 8 {
		return s, false
	}
	name := binary.BigEndian.Uint32(b[4:])
	if name > maxMachineName {
		return s, false
	}
	at := 8 + xdr.Roundup(int(name))
	if len(b) < at+12 {
		return s, false
	}
	n := binary.BigEndian.Uint32(b[at+8:])
	if n > maxSysGroups || len(b) != at+12+4*int(n) {
		return s, false
	}
	return SysCredential{ids: b[at:], groups: int(n)}, true
}

// IDs returns the octets that have the user and the groups: uid, gid, gids<16>.
func (s SysCredential) IDs() []byte { return s.ids }

// UID returns the user.
func (s SysCredential) UID() uint32 { return binary.BigEndian.Uint32(s.ids) }

// Groups returns how many groups the user has, the first of which is the primary one.
func (s SysCredential) Groups() int { return 1 + s.groups }

// Group returns a group, from 0 on.
func (s SysCredential) Group(i int) uint32 {
	if i == 0 {
		return binary.BigEndian.Uint32(s.ids[4:])
	}
	return binary.BigEndian.Uint32(s.ids[8+4*i:])
}

// SetUID changes the user in the message.
func (s SysCredential) SetUID(uid uint32) { binary.BigEndian.PutUint32(s.ids, uid) }

// SetGroup changes a group in the message.
func (s SysCredential) SetGroup(i int, gid uint32) {
	if i == 0 {
		binary.BigEndian.PutUint32(s.ids[4:], gid)
		return
	}
	binary.BigEndian.PutUint32(s.ids[8+4*i:], gid)
}
