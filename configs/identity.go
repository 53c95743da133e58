package configs

import (
	"crypto/sha256"
	"fmt"
)

// An Identity tells a bridge from all others. Package proxy makes the XIDs and the lock owners
// that servers see from it, so anybody who knows the identity can predict those.
type Identity string

const (
	minIdentity = 8
	maxIdentity = 256
)

// String returns a hash of the identity, which shows changes of it in a log and not the
// identity.
func (id Identity) String() string {
	if id == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("sha256:%x", sum[:4])
}

func (id Identity) validate(r *report) {
	if n := len(id); id != "" && (n < minIdentity || n > maxIdentity) && !r.has("identity") {
		many := "few"
		if n > maxIdentity {
			many = "many"
		}
		r.addf("identity", "%d octets are too %s; write a text of %d to %d that no other bridge has", n, many, minIdentity, maxIdentity)
	}
}
