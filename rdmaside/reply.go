package rdmaside

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// maxReplyParts is what one reduced result makes of a Reply: base before it,
// the data, padding, base after it.
const maxReplyParts = 4

// A Reply is a plain RPC Reply in up to four parts that are to be written one
// after another. The first holds at least the XID and may be written to, so that
// the client's XID can be put back.
type Reply struct {
	parts  [maxReplyParts][]byte
	n      int
	length int
	leases [2]*regmem.Lease
}

// Parts returns the parts in order, none of them empty. They are valid until
// Release.
func (r *Reply) Parts() [][]byte { return r.parts[:r.n] }

// Len is the length of the plain Reply in octets, a multiple of 4.
func (r *Reply) Len() int { return r.length }

// Held is how many octets of memory the Reply takes until Release: at least Len,
// but for padding.
func (r *Reply) Held() int {
	n := 0
	for _, l := range r.leases {
		if l != nil {
			n += l.Cap()
		}
	}
	return n
}

// Release gives the memory back. It may be called on any goroutine, once; on a
// Reply that holds nothing it does nothing.
func (r *Reply) Release() {
	leases := r.leases
	*r = Reply{}
	for _, l := range leases {
		if l != nil {
			l.Release()
		}
	}
}

func (r *Reply) add(b []byte) {
	if len(b) == 0 {
		return
	}
	r.parts[r.n] = b
	r.n++
	r.length += len(b)
}
