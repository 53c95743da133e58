package ulb

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// ErrChunk is wrapped when the octets moved through a chunk do not fit into the message
// that they were taken from.
var ErrChunk = errors.New("chunk does not match the message")

// A Splice is the place of a reduced item in its message. The plain message is
//
//	base[:Pos] + chunk[:Length] + Padding octets of zero + base[Pos:]
//
// and the reduced message is
//
//	plain[:Pos] + plain[Pos+Length+Padding:]
type Splice struct{ Pos, Length, Padding uint32 }

// Restore finds the place in a Reply of the octets that the Responder wrote into the
// only Write chunk of the Call. base is the Reply's Payload stream, b and proc are the
// Call's binding and procedure, and written is the length that the Responder returned.
// spliced is false when base is the plain Reply already. The error wraps
// ErrChunk or an [*oncrpc.Error]. The server has executed the Call then, but its Reply
// is lost.
//
// Restore accepts more than RFC 8166 lets a Responder send, where it can mean only one
// thing: roundup written behind the data ("A Responder MUST NOT write XDR
// roundup padding into a Write chunk", Section 3.4.6.2), roundup left inline
// behind the absent data, and an item left inline although a chunk was offered.
func Restore(b Binding, proc uint32, base []byte, written uint32) (s Splice, spliced bool, err error) {
	if written == 0 {
		// The Reply has no such item, or an empty one, or the item is inline. The client
		// judges the contents of base.
		return Splice{}, false, nil
	}
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(base, &r); err != nil {
		return Splice{}, false, err
	}
	if !r.Succeeded() {
		return Splice{}, false, fmt.Errorf("ulb: %d octets written for a Reply without results: %w", written, ErrChunk)
	}
	pos, n, ok, err := b.ResultItem(proc, base, r.Results, true)
	if err != nil {
		return Splice{}, false, err
	}
	if !ok {
		return Splice{}, false, fmt.Errorf("ulb: %d octets written for a Reply without an eligible item: %w", written, ErrChunk)
	}
	if n == 0 || !holds(written, n) {
		return Splice{}, false, fmt.Errorf("ulb: %d octets written for an item of %d: %w", written, n, ErrChunk)
	}
	// A plain message is whole XDR units, so the length of base tells whether it kept
	// the item's roundup.
	return Splice{Pos: pos, Length: n, Padding: -(uint32(len(base)) + n) & 3}, true, nil
}

// RestoreCall finds, for a Responder, the place of the octets of the only normal Read chunk of
// a Call. c was parsed from the Payload stream without these octets. position and length
// describe the chunk. The error wraps ErrChunk. "The Responder MUST NOT process this RPC Call
// message and MUST report the violation as described in Section 4.5.2", RFC 8166 Section 6.1:
// with ERR_CHUNK.
func RestoreCall(b Binding, c *oncrpc.Call, position, length uint32) (Splice, error) {
	n, ok := b.ArgItem(c, position)
	if !ok {
		return Splice{}, fmt.Errorf("ulb: no eligible argument at position %d: %w", position, ErrChunk)
	}
	if !holds(length, n) {
		return Splice{}, fmt.Errorf("ulb: chunk of %d octets for an argument of %d: %w", length, n, ErrChunk)
	}
	return Splice{Pos: position, Length: n, Padding: -n & 3}, nil
}

// Reducible finds the item of the plain Reply m that must go into the first
// Write chunk of its Call, for a Responder: "When a Requester provides a Write
// list, the Responder MUST push data corresponding to DDP-eligible result data
// items to Requester memory referenced in the Write list", RFC 8166 Section
// 4.3.2. ok is false when the Reply has no eligible item or cannot be walked. The Reply
// then stays whole and the Responder returns the chunk unused. An empty item uses
// the chunk, with a returned length of 0.
func Reducible(b Binding, proc uint32, m []byte) (s Splice, ok bool) {
	var r oncrpc.Reply
	if oncrpc.ParseReply(m, &r) != nil || !r.Succeeded() {
		return Splice{}, false
	}
	pos, n, ok, err := b.ResultItem(proc, m, r.Results, false)
	if err != nil || !ok {
		return Splice{}, false
	}
	return Splice{Pos: pos, Length: n, Padding: -n & 3}, true
}

// ReducibleItems does what Reducible does, for a Call with several Write chunks. It fills items
// with the items for the first len(items) chunks, one for each, and returns how many there are.
// "The first chunk in the Write list MUST be used by the first READ operation in an NFS version
// 4 COMPOUND procedure. The next Write chunk is used by the next READ operation, and so on."
// RFC 8267 Section 6.4.1. An empty item has a chunk, too.
func ReducibleItems(b Binding, proc uint32, m []byte, items []Splice) int {
	var r oncrpc.Reply
	if oncrpc.ParseReply(m, &r) != nil || !r.Succeeded() {
		return 0
	}
	n, err := b.ResultItems(proc, m, r.Results, items)
	if err != nil {
		return 0
	}
	return n
}

// holds reports whether a chunk of length octets can hold an item of n octets, with or
// without its roundup.
func holds(length, n uint32) bool {
	return length == n || uint64(length) == uint64(n)+uint64(-n&3)
}
