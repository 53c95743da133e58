package identity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// user returns the flavor and the body of the credential of h as far as they say whose Call it
// is. The stamp of AUTH_SYS is "an arbitrary ID which the caller machine may generate": RFC 5531
// Appendix A. Some clients put the time there, which a retransmission may have anew.
func user(h *oncrpc.Call) (flavor uint32, body []byte) {
	body = h.Message[oncrpc.CredentialPos:][:h.CredentialLen]
	if h.Flavor == oncrpc.FlavorSys && len(body) >= 4 {
		body = body[4:]
	}
	return h.Flavor, body
}

// sameCall reports whether a and b are one Call that a client has sent twice: they are the same to the last octet, apart
// from the stamp of AUTH_SYS and the verifier.
func sameCall(a, b *oncrpc.Call) bool {
	if a.XID != b.XID || a.Program != b.Program || a.Version != b.Version || a.Procedure != b.Procedure || a.Flavor != b.Flavor {
		return false
	}
	_, ua := user(a)
	_, ub := user(b)
	return bytes.Equal(ua, ub) && bytes.Equal(a.Message[a.Args:], b.Message[b.Args:])
}

// A userKey is the key of the XIDs of one user of a client at one upstream.
type userKey = permutation

// user derives the key of one user of the client from the client's key.
func (k *ClientKey) user(flavor uint32, body []byte) userKey {
	// SHA-256 with the key before the message is a keyed hash as long as the result is cut: an
	// attacker cannot continue a hash of which it does not know all.
	var b [len(ClientKey{}) + 4 + oncrpc.MaxAuth]byte
	n := copy(b[:], k[:])
	binary.BigEndian.PutUint32(b[n:], flavor)
	n += 4
	n += copy(b[n:], body)
	sum := sha256.Sum256(b[:n])
	return newPermutation(sum[:])
}

// userCount is how many keys of users a loop remembers.
const userCount = 256

// Users are the keys of the users whose Calls a loop has read lately, because a key
// costs more than everything else that an XID needs. It belongs to the loop.
type Users struct {
	seed maphash.Seed
	keys [userCount]struct {
		tag uint64 // a hash of the client's key and the credential; 0: the place is empty
		key userKey
	}
}

// NewUsers returns Users that know nobody.
func NewUsers() *Users { return &Users{seed: maphash.MakeSeed()} }

// find returns the key of the user who made the Call h. k is the key of the client.
func (t *Users) find(k *ClientKey, h *oncrpc.Call) userKey {
	flavor, body := user(h)
	p := newPermutation(k[:])
	tag := fold(maphash.Bytes(t.seed, body)^p.a, p.b^uint64(flavor)) | 1
	at := &t.keys[tag>>1%userCount]
	if at.tag != tag {
		at.tag, at.key = tag, k.user(flavor, body)
	}
	return at.key
}

const (
	// longestCredential is how many octets of a credential a LatestUser remembers, with its flavor and length, and an
	// empty verifier: a host name of 48 octets and 16 groups fit.
	longestCredential = 152
	// mostOthers is how many Calls in a row have another credential before theirs is remembered. Remembering costs
	// more than it saves where users take turns.
	mostOthers = 4
)

// A LatestUser is the credential of a connection's latest Calls. Most Calls have the credential of the Call before
// them on their connection. Comparing it costs less than what would follow from it anew: the key of the XID, and
// which rule decides. So a connection remembers a credential, another one when several Calls in a row did not have it,
// and numbers those that it has remembered: Calls with one number have the same octets as credential.
//
// It belongs to the connection's loop. The zero value remembers none.
type LatestUser struct {
	number uint64 // of the credential that is remembered
	known  bool   // the latest Call has that credential; otherwise nothing here is about it
	keyed  bool   // key is that of the credential's user at the upstream of client
	others uint8  // Calls in a row that had another
	n      uint8  // of octets; 0: none is remembered
	length uint16 // of the credential's body
	kind   uint32 // the flavor of the credential
	client ClientKey
	key    userKey
	octets [longestCredential]byte // with the verifier
}

// Parse fills h from the Call m, the connection's next one, if m has the credential that is remembered, and does what
// See does. Otherwise it returns false, and the caller parses the header and calls See.
func (l *LatestUser) Parse(m []byte, h *oncrpc.Call) bool {
	args := credentialAt + int(l.n)
	if l.n == 0 || len(m) < args || binary.BigEndian.Uint64(m[4:]) != oncrpc.TypeCall<<32|oncrpc.RPCVersion ||
		string(m[credentialAt:args]) != string(l.octets[:l.n]) {
		return false
	}
	head := (*[credentialAt]byte)(m)
	h.XID, h.Program = binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[12:])
	h.Version, h.Procedure = binary.BigEndian.Uint32(head[16:]), binary.BigEndian.Uint32(head[20:])
	h.Flavor, h.Protection, h.Args = l.kind, oncrpc.ProtectNone, args
	h.Message, h.GSS = m, oncrpc.GSS{}
	h.CredentialLen = int(l.length)
	h.VerifierFlavor, h.VerifierLen = 0, 0
	l.known, l.others = true, 0
	return true
}

// credentialAt is where flavor, length and body of the credential are in a Call, and those of the verifier behind
// them: RFC 5531 Section 9.
const credentialAt = oncrpc.CredentialPos - 8

// See compares the credential of h, the connection's next Call, with the one that is remembered.
func (l *LatestUser) See(h *oncrpc.Call) {
	octets := h.Message[credentialAt:h.Args]
	l.known = string(octets) == string(l.octets[:l.n])
	if l.known {
		l.others = 0
		return
	}
	l.other(h, octets)
}

// other remembers the credential of h if it is time for another one. Those of RPCSEC_GSS have sequence numbers, and
// others have no verifier.
func (l *LatestUser) other(h *oncrpc.Call, octets []byte) {
	l.others++
	if l.n > 0 && l.others < mostOthers || len(octets) > longestCredential ||
		h.Flavor != oncrpc.FlavorSys && h.Flavor != oncrpc.FlavorNone ||
		h.VerifierFlavor != oncrpc.FlavorNone || h.VerifierLen != 0 {
		l.others = min(l.others, mostOthers)
		return
	}
	l.Forget()
	l.known, l.n = true, uint8(copy(l.octets[:], octets))
	l.kind, l.length = h.Flavor, uint16(h.CredentialLen)
}

// Number returns the number of the latest Call's credential if that is remembered, and otherwise 0.
func (l *LatestUser) Number() uint64 {
	if !l.known {
		return 0
	}
	return l.number
}

// Forget forgets the credential. No later one has its number.
func (l *LatestUser) Forget() {
	l.number++
	l.known, l.keyed, l.others, l.n = false, false, 0, 0
}

// XID returns the XID that the upstream sees of h, the latest Call. client is the key of the client at the upstream.
func (l *LatestUser) XID(users *Users, client *ClientKey, h *oncrpc.Call) uint32 {
	return xidOf(l.keyOf(users, client, h), h)
}

// NextXID returns what XID does, for less: the Call before h had the same credential, which is remembered, and went to the
// same upstream.
func (l *LatestUser) NextXID(h *oncrpc.Call) uint32 { return xidOf(l.key, h) }

// keyOf returns the key of the user of h, the latest Call, at the upstream that client is for.
func (l *LatestUser) keyOf(users *Users, client *ClientKey, h *oncrpc.Call) userKey {
	if !l.known {
		return users.find(client, h)
	}
	if !l.keyed || l.client != *client {
		l.client, l.key, l.keyed = *client, users.find(client, h), true
	}
	return l.key
}
