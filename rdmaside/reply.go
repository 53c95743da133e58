package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// maxReplyParts is how many parts a Reply with one reduced result has: the base
// before it, the data, the padding, and the base after it.
const maxReplyParts = 4

// A Reply is a plain RPC Reply in up to four parts, which the owner writes one
// after another. The first part holds at least the XID. The owner may write to
// it, so that it can restore the client's XID.
type Reply struct {
	n      int32
	beside bool // a part lies in the block of the Call's Message
	leases [2]*regmem.Lease
	parts  [maxReplyParts][]byte // those from n on are nil
}

// Parts returns the parts in order. No part is empty. They are valid until
// Release.
func (r *Reply) Parts() [][]byte { return r.parts[:r.n] }

// Beside reports whether a part lies in the block of the Call's Message, behind it: see Call.Spare. The owner
// releases that block after the Reply.
func (r *Reply) Beside() bool { return r.beside }

// Held returns how many octets of memory the Reply occupies until Release. This is at least the length of its
// parts, not counting padding and what lies beside the Call, in memory that is the Call's.
func (r *Reply) Held() int {
	n := 0
	if l := r.leases[0]; l != nil {
		n = l.Size()
	}
	if l := r.leases[1]; l != nil {
		n += l.Size()
	}
	return n
}

// Release returns the memory to the arena. It may be called on any goroutine,
// once. On a Reply that holds nothing it does nothing.
func (r *Reply) Release() {
	leases := r.leases
	r.empty()
	for _, l := range leases {
		if l != nil {
			l.Release()
		}
	}
}

// ReleaseOn does what Release does, on the loop that a is for: see regmem.Account.Local.
func (r *Reply) ReleaseOn(a *regmem.Account) {
	base, chunk := r.leases[0], r.leases[1]
	r.empty()
	if base != nil {
		a.Release(base)
	}
	if chunk != nil {
		a.Release(chunk)
	}
}

// empty empties r.
func (r *Reply) empty() {
	for i := r.n - 1; i >= 0; i-- { // one, mostly, for which clear takes four times as long
		r.parts[i] = nil
	}
	r.leases, r.n, r.beside = [2]*regmem.Lease{}, 0, false
}

func (r *Reply) add(b []byte) {
	if len(b) == 0 {
		return
	}
	r.parts[r.n] = b
	r.n++
}
