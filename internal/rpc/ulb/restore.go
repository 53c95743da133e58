package ulb

import (
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// ErrChunk is wrapped when the octets moved through a chunk do not match the
// message they were reduced from.
var ErrChunk = errors.New("chunk does not match the message")

// A Splice says where a reduced item belongs. The plain message is
//
//	base[:Pos] + chunk[:Length] + Padding octets of zero + base[Pos:]
//
// and, read the other way, the reduced message is
//
//	plain[:Pos] + plain[Pos+Length+Padding:]
type Splice struct{ Pos, Length, Padding uint32 }

// Restore finds where the octets that the Responder wrote into the one Write
// chunk of a Call belong in its Reply. base is the Reply's Payload stream, b
// and proc are those of the Call, written is the length the Responder returned.
// spliced is false when base is the plain Reply already. The error wraps
// ErrChunk or an [*oncrpc.Error]; the Reply is lost then, its Call executed.
//
// More is taken than RFC 8166 lets a Responder send, where it can mean only one
// thing: roundup written behind the data ("A Responder MUST NOT write XDR
// roundup padding into a Write chunk", Section 3.4.6.2), roundup left inline
// behind the absent data, an item left inline although a chunk was offered.
func Restore(b Binding, proc uint32, base []byte, written uint32) (s Splice, spliced bool, err error) {
	if written == 0 {
		// The Reply has no such item, or one of no octets, or it is inline. What
		// is in base is for the client to judge.
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
	// A plain message is whole XDR units, so base says itself whether it kept
	// the item's roundup.
	return Splice{Pos: pos, Length: n, Padding: -(uint32(len(base)) + n) & 3}, true, nil
}

// RestoreCall finds where the octets of the one normal Read chunk of a Call
// belong, for a Responder: c was parsed from the Payload stream without them,
// position and length are the chunk's. The error wraps ErrChunk. "The Responder
// MUST NOT process this RPC Call message and MUST report the violation as
// described in Section 4.5.2", RFC 8166 Section 6.1: with ERR_CHUNK.
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
// 4.3.2. ok is false when the Reply has no eligible item or cannot be walked; it
// then stays whole and the chunk is returned unused. An item of no octets uses
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

// ReducibleItems is Reducible for a Call with several Write chunks: it fills items
// with the items that belong into the first len(items) chunks, one into each, and
// returns how many there are. "The first chunk in the Write list MUST be used by
// the first READ operation in an NFS version 4 COMPOUND procedure. The next Write
// chunk is used by the next READ operation, and so on." RFC 8267 Section 6.4.1.
// An item of no octets has its chunk, too.
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

// holds is whether a chunk of length octets can hold an item of n: with or
// without roundup.
func holds(length, n uint32) bool {
	return length == n || uint64(length) == uint64(n)+uint64(-n&3)
}
