package explain

import (
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A shape says in which form a message would travel, which comparisons led to it, and
// which other forms are possible.
type shape struct {
	Shape     string   `json:"shape"`              // see the constants below
	Position  uint32   `json:"position,omitempty"` // of the data in a Read chunk or a Write chunk
	Octets    uint32   `json:"octets,omitempty"`   // of the chunk
	Steps     []step   `json:"steps"`
	DecidedBy string   `json:"decided_by"`
	Otherwise []string `json:"otherwise,omitempty"`
}

// A step compares the sum of its terms with a limit. A step without terms gives the
// reason why a comparison was not needed.
type step struct {
	Tries  string `json:"tries"`
	Terms  []term `json:"terms,omitempty"`
	Sum    int64  `json:"sum,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
	Holds  bool   `json:"holds"`
	Reason string `json:"reason,omitempty"`
}

type term struct {
	Octets int64  `json:"octets"` // negative for octets that travel in a chunk
	What   string `json:"what"`
}

// The names of shapes. A Call is inline, read_chunk or position_zero, a Reply inline,
// write_chunk or reply_chunk, and either may be none.
const (
	shapeInline       = "inline"
	shapeReadChunk    = "read_chunk"
	shapePositionZero = "position_zero"
	shapeWriteChunk   = "write_chunk"
	shapeReplyChunk   = "reply_chunk"
	shapeNone         = "none"
)

var (
	callShapes  = [...]string{ulb.CallInline: shapeInline, ulb.CallReadChunk: shapeReadChunk, ulb.CallLong: shapePositionZero}
	replyShapes = [...]string{ulb.ReplyInline: shapeInline, ulb.ReplyWriteChunk: shapeWriteChunk, ulb.ReplyChunk: shapeReplyChunk}
)

// The parts of a Transport header, RFC 8166 Section 4. Each list has one chunk of one
// segment.
var (
	termHeader     = term{rpcrdma.PlainLen, "header"}
	termReadList   = term{rpcrdma.ReadSegmentLen, "Read list"}
	termWriteList  = term{4 + 4 + rpcrdma.SegmentLen, "Write list"}
	termReplyChunk = term{4 + rpcrdma.SegmentLen, "Reply chunk"}
)

// compare returns a step that compares the sum of terms with limit. It leaves out terms
// of 0 octets.
func compare(tries string, limit int, terms ...term) step {
	s := step{Tries: tries, Limit: int64(limit)}
	for _, t := range terms {
		if t.Octets != 0 {
			s.Terms = append(s.Terms, t)
			s.Sum += t.Octets
		}
	}
	s.Holds = s.Sum <= s.Limit
	return s
}

// String formats s as one line.
func (s *step) String() string {
	if len(s.Terms) == 0 {
		return s.Reason
	}
	var b strings.Builder
	for i, t := range s.Terms {
		switch {
		case t.Octets < 0:
			fmt.Fprintf(&b, " - %d %s", -t.Octets, t.What)
		case i > 0:
			fmt.Fprintf(&b, " + %d %s", t.Octets, t.What)
		default:
			fmt.Fprintf(&b, "%d %s", t.Octets, t.What)
		}
	}
	sign := "<="
	if !s.Holds {
		sign = ">"
	}
	fmt.Fprintf(&b, " = %d %s %d", s.Sum, sign, s.Limit)
	return b.String()
}
