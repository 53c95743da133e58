package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// An identity is the key that everything is derived from which two bridges must do differently,
// and which a bridge must do in the same way after a restart: the XIDs that servers see, and the
// numbers of NLM's lock owners.
type identity [sha256.Size]byte

// newIdentity makes a key of the name that tells this bridge from others.
func newIdentity(name string) identity {
	return identity(keyedHash([]byte("rdmabridge identity 1"), []byte(name)))
}

// keyedHash is HMAC-SHA256 of parts, each with its length.
func keyedHash(key []byte, parts ...[]byte) (sum [sha256.Size]byte) {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		m.Write(n[:])
		m.Write(p)
	}
	m.Sum(sum[:0])
	return sum
}

// A clientKey is the key of one client's XIDs at one upstream. It depends on the whole address:
// two addresses of one IPv6 /64 may be two honest clients. For clients over RDMA it is that of
// earlier versions.
type clientKey [16]byte

// clientKey derives the key of the client that is known by o. The key costs about a microsecond.
// It is derived once for each connection and upstream.
func (id *identity) clientKey(upstream string, o origin) clientKey {
	sum := keyedHash(id[:], append([][]byte{[]byte("xid"), []byte(upstream)}, o.parts()...)...)
	return clientKey(sum[:16])
}

// credentialKey derives the key of one user of the client from the client's key.
func (k *clientKey) credentialKey(flavor uint32, body []byte) permutation {
	// SHA-256 with the key before the message is a keyed hash as long as the result is cut: an
	// attacker cannot continue a hash of which it does not know all.
	var b [len(clientKey{}) + 4 + oncrpc.MaxAuth]byte
	n := copy(b[:], k[:])
	binary.BigEndian.PutUint32(b[n:], flavor)
	n += 4
	n += copy(b[n:], body)
	sum := sha256.Sum256(b[:n])
	return newPermutation(sum[:])
}

// credentialKeys is how many keys of users a loop remembers.
const credentialKeyCount = 256

// credentialKeys are the keys of the users whose Calls a loop has read lately, because a key
// costs more than everything else that an XID needs. It belongs to the loop.
type credentialKeys [credentialKeyCount]struct {
	tag uint64 // a hash of the client's key and the credential; 0: the place is empty
	key permutation
}

// find returns the key of the user who made the Call h. k is the key of the client.
func (t *credentialKeys) find(seed maphash.Seed, k *clientKey, h *oncrpc.Call) permutation {
	flavor, body := user(h)
	p := newPermutation(k[:])
	tag := fold(maphash.Bytes(seed, body)^p.a, p.b^uint64(flavor)) | 1
	at := &t[tag>>1%credentialKeyCount]
	if at.tag != tag {
		at.tag, at.key = tag, k.credentialKey(flavor, body)
	}
	return at.key
}
