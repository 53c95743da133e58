package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// A Bridge is the key that everything is derived from which two bridges must do differently,
// and which a bridge must do in the same way after a restart: the XIDs that servers see, and the
// numbers of NLM's lock owners.
type Bridge [sha256.Size]byte

// NewBridge makes a key of the name that tells this bridge from others.
func NewBridge(name string) Bridge {
	return Bridge(keyedHash([]byte("rdmabridge identity 1"), []byte(name)))
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

// A ClientKey is the key of one client's XIDs at one upstream. It depends on the whole address:
// two addresses of one IPv6 /64 may be two honest clients. For clients over RDMA it is that of
// earlier versions.
type ClientKey [16]byte

// ClientKey derives the key of the client that is known by o. The key costs about a microsecond.
// It is derived once for each connection and upstream.
func (b *Bridge) ClientKey(upstream string, o Origin) ClientKey {
	sum := keyedHash(b[:], append([][]byte{[]byte("xid"), []byte(upstream)}, o.parts()...)...)
	return ClientKey(sum[:16])
}
