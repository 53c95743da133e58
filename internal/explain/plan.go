package explain

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A plan says how a Call and its Reply would travel.
type plan struct {
	Call  shape `json:"call"`
	Reply shape `json:"reply"`
	// Error says why the Call cannot travel. Call and Reply are empty then.
	Error string `json:"error,omitempty"`
}

// newPlan asks the registry how the Call would travel and repeats the arithmetic of
// ulb.Registry.Plan to show it. length is the length of the Call in octets.
func (e *explainer) newPlan(h *oncrpc.Call, a *ulb.Analysis, length int, k *knownCall) *plan {
	s, err := e.registry.Plan(a, length, e.callInline, e.replyInline)
	if err != nil {
		return &plan{Error: err.Error()}
	}
	k.planned, k.shape = true, s
	p := &plan{}
	p.reply(e, h, a, length, s)
	p.call(e, h, a, length, s)
	return p
}

// reversePlan returns the plan of a Call from the server to the client. The bridge
// neither offers nor accepts chunks in that direction, so the Call is inline or cannot
// travel. "The call inline threshold for the reverse direction is the same as the reply
// inline threshold for the forward direction, and vice versa." RFC 8167 Section 4.2.
func (e *explainer) reversePlan(length int) *plan {
	p := &plan{}
	p.Call.Shape = shapeInline
	p.Call.Steps = []step{compare(shapeInline, e.replyInline, termHeader, term{int64(length), "Call"})}
	p.Call.DecidedBy = "the inline threshold of Replies, which counts for every message from the server; there are no chunks in this direction"
	if !p.Call.Steps[0].Holds {
		p.Call.Shape = shapeNone
	}
	return p
}

// noData says why the arguments or the results have no data for a chunk. It returns "" if they
// have data.
func noData(h *oncrpc.Call, a *ulb.Analysis, what string, octets uint32) string {
	switch {
	case !a.Reduce:
		return "the credential forbids it"
	case !a.Known:
		return "the bridge cannot decode the " + what
	case octets == 0 && h.Program == oncrpc.ProgramNFS && h.Version == 4 && h.Procedure == 1:
		if what == "arguments" {
			return "no WRITE has data"
		}
		return "the COMPOUND does not have exactly one operation with data in its result (READ)"
	case octets == 0:
		return "the " + what + " have no data that may be placed directly"
	}
	return ""
}

func (p *plan) reply(e *explainer, h *oncrpc.Call, a *ulb.Analysis, length int, s ulb.Shape) {
	r := &p.Reply
	r.Shape, r.Octets = replyShapes[s.Reply], s.Capacity
	inline := compare("inline", e.replyInline, termHeader, term{int64(a.MaxReply), "Reply"})
	r.Steps = append(r.Steps, inline)
	// The Reply chunk that the plan offers if no data are placed directly.
	whole := *a
	whole.ResultMax, whole.ArgLength = 0, 0
	long, _ := e.registry.Plan(&whole, length, e.callInline, 0)
	chunk := fmt.Sprintf("a Reply chunk of %d octets", long.Capacity)
	if inline.Holds {
		r.DecidedBy = fmt.Sprintf("the inline threshold of Replies, %d", e.replyInline)
		r.Otherwise = []string{chunk}
		return
	}
	fits := fmt.Sprintf("inline, with a threshold of %d or more", inline.Sum)
	if inline.Sum > rpcrdma.MaxInline {
		fits = ""
	}
	if why := noData(h, a, "results", a.ResultMax); why != "" {
		r.Steps = append(r.Steps, step{Tries: shapeWriteChunk, Reason: why})
		r.DecidedBy = "the bound on the Reply"
	} else {
		rest := compare(shapeWriteChunk, e.replyInline, termHeader, termWriteList, term{int64(a.MaxReduced), "Reply without data"})
		call := compare(shapeWriteChunk, e.callInline, termHeader, termWriteList, term{int64(length), "Call"})
		r.Steps = append(r.Steps, rest, call)
		switch {
		case rest.Holds && call.Holds:
			r.DecidedBy = "the length of the data"
			r.Otherwise = append(r.Otherwise, chunk)
		case !rest.Holds:
			r.DecidedBy = "the length of the Reply without its data"
		default:
			r.DecidedBy = "the length of the Call: the bridge sends no Write list with a Read list"
		}
	}
	if fits != "" {
		r.Otherwise = append(r.Otherwise, fits)
	}
}

func (p *plan) call(e *explainer, h *oncrpc.Call, a *ulb.Analysis, length int, s ulb.Shape) {
	c := &p.Call
	c.Shape = callShapes[s.Call]
	var chunks term // the chunk that the header has for the Reply
	switch s.Reply {
	case ulb.ReplyChunk:
		chunks = termReplyChunk
	case ulb.ReplyWriteChunk:
		chunks = termWriteList
	}
	inline := compare("inline", e.callInline, termHeader, chunks, term{int64(length), "Call"})
	c.Steps = append(c.Steps, inline)
	const whole = "whole, as a Position Zero Read chunk"
	if s.Call == ulb.CallInline {
		c.DecidedBy = fmt.Sprintf("the inline threshold of Calls, %d", e.callInline)
		c.Otherwise = []string{whole}
		return
	}
	fits := fmt.Sprintf("inline, with a threshold of %d or more", inline.Sum)
	if why := noData(h, a, "arguments", a.ArgLength); why != "" {
		c.Steps = append(c.Steps, step{Tries: shapeReadChunk, Reason: why})
		c.DecidedBy = "the length of the Call"
	} else {
		n := int64(a.ArgLength+3) &^ 3
		rest := compare(shapeReadChunk, e.callInline, termHeader, chunks, termReadList, term{int64(length), "Call"}, term{-n, "data"})
		c.Steps = append(c.Steps, rest)
		if rest.Holds {
			c.Position, c.Octets = a.ArgPosition, a.ArgLength
			c.DecidedBy = "the length of the data"
			c.Otherwise = append(c.Otherwise, whole)
		} else {
			c.DecidedBy = "the length of the Call without its data"
		}
	}
	if s.Call == ulb.CallLong {
		c.Octets = uint32(length)
	}
	if inline.Sum <= rpcrdma.MaxInline {
		c.Otherwise = append(c.Otherwise, fits)
	}
}
