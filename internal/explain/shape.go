package explain

import (
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A shape is how one message would travel, what was looked at to find that, and
// what else would do.
type shape struct {
	Shape     string   `json:"shape"`              // inline, read_chunk, position_zero; inline, write_chunk, reply_chunk; none
	Position  uint32   `json:"position,omitempty"` // of a Read chunk
	Octets    uint32   `json:"octets,omitempty"`   // of the chunk
	Steps     []step   `json:"steps"`
	DecidedBy string   `json:"decided_by"`
	Otherwise []string `json:"otherwise,omitempty"`
}

// A step is one comparison: the sum of terms with a limit; or, without terms, a
// reason why it need not be made.
type step struct {
	Tries  string `json:"tries"`
	Terms  []term `json:"terms,omitempty"`
	Sum    int64  `json:"sum,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
	Holds  bool   `json:"holds"`
	Reason string `json:"reason,omitempty"`
}

type term struct {
	Octets int64  `json:"octets"` // negative for what is taken away
	What   string `json:"what"`
}

// The names of shapes.
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

// What a Transport header consists of: RFC 8166 Section 4. A list has one chunk of
// one segment.
var (
	termHeader     = term{rpcrdma.PlainLen, "header"}
	termReadList   = term{rpcrdma.ReadSegmentLen, "Read list"}
	termWriteList  = term{4 + 4 + rpcrdma.SegmentLen, "Write list"}
	termReplyChunk = term{4 + rpcrdma.SegmentLen, "Reply chunk"}
)

// compare makes a step of terms.
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

// String is the step in one line.
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
