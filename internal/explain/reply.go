package explain

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// A replyPart is what there is to say of a Reply.
type replyPart struct {
	Call          int      `json:"call,omitempty"` // number of the message with the Call; 0: not seen
	Program       string   `json:"program_name,omitempty"`
	ProcedureName string   `json:"procedure_name,omitempty"`
	After         *float64 `json:"after,omitempty"` // seconds since the Call
	Duplicate     bool     `json:"duplicate,omitempty"`

	Accepted bool     `json:"accepted"`
	Status   string   `json:"status"` // accept_stat or reject_stat, with what comes with it
	Verifier verifier `json:"verifier"`
	Length   int      `json:"length"` // of the whole Reply, 0 when not all of it is there

	// Of the program, by its first result.
	ProgramStatus string    `json:"program_status,omitempty"`
	Compound      *compound `json:"compound,omitempty"`

	// Item is the data that may be placed directly, in the whole Reply.
	Item *item `json:"item,omitempty"`
	// Splice is where a Write chunk's octets go into the Payload stream.
	Splice *splice `json:"splice,omitempty"`

	// Bound compares the length with what was expected of the Call.
	Bound  *bound `json:"bound,omitempty"`
	Travel *shape `json:"travel,omitempty"` // how it would come with the plan of its Call

	title string // of the Call
}

type splice struct {
	Position uint32 `json:"position"`
	Length   uint32 `json:"length"`
	Roundup  uint32 `json:"roundup"`
}

type bound struct {
	MaxReply uint32 `json:"max_reply"`
	Holds    bool   `json:"holds"`
}

// explainReply explains the Reply b, or what of it is there.
func (e *explainer) explainReply(m *message, c *capture.Message, b []byte, whole bool) error {
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(b, &r); err != nil {
		m.Kind, m.Problem = kindMalformed, rpcProblem("Reply", b, err)
		if !whole && errors.Is(err, oncrpc.ErrShort) {
			m.Kind, m.Problem = kindCut, fmt.Sprintf("a Reply of which %d octets are in the input: too few for its header", len(b))
		}
		return e.show(m)
	}
	m.Kind = kindReply
	p := &replyPart{Accepted: !r.Denied, Status: replyStatus(&r)}
	m.Reply = p
	if !r.Denied {
		p.Verifier = verifier{r.VerifierFlavor, flavorName(r.VerifierFlavor), r.VerifierLen}
	}
	k := e.callOf(c, r.XID)
	if k != nil {
		if e.match(p, k, c.Time); !k.known {
			k = nil // nothing to compare with
		}
	}
	// A Reply with Write chunks is whole again once they are spliced in.
	length := len(b)
	if c.RDMA != nil && k != nil && len(c.RDMA.Writes) > 0 {
		length = e.spliced(m, p, c, k, b, whole)
	}
	if !whole {
		m.note("%d octets of the Reply are in the input, not all", len(b))
	} else {
		p.Length = length
	}
	if k != nil && r.Succeeded() {
		p.ProgramStatus = programStatus(&k.call, &r)
		p.Compound = e.newResults(k, &r)
	}
	if k != nil && whole {
		if k.analysis.CreatesSession {
			e.sessions.Learn(b)
		}
		if p.Splice == nil && k.call.Reducible() {
			if s, ok := ulb.Reducible(k.binding, k.call.Procedure, b); ok {
				p.Item = &item{s.Pos, s.Length}
			}
		}
		e.travel(p, k, length)
	}
	return e.show(m)
}

// spliced finds where the octets of the Write chunk belong, and returns the length
// of the whole Reply.
func (e *explainer) spliced(m *message, p *replyPart, c *capture.Message, k *knownCall, b []byte, whole bool) int {
	if !whole {
		return len(b)
	}
	used, at := 0, 0
	for i := range c.RDMA.Writes {
		if c.RDMA.Writes[i].Length > 0 {
			used, at = used+1, i
		}
	}
	if used == 0 {
		m.note("no Write chunk was used: the Reply is whole as it is")
		return len(b)
	}
	if used > 1 {
		total := 0
		for i := range c.RDMA.Writes {
			total += int(c.RDMA.Writes[i].Length+3) &^ 3
		}
		m.note("%d Write chunks were used; the bridge never offers more than one", used)
		return len(b) + total
	}
	s, ok, err := ulb.Restore(k.binding, k.call.Procedure, b, uint32(c.RDMA.Writes[at].Length))
	switch {
	case err != nil:
		m.note("the Write chunk cannot be put back: %v", err)
		return len(b)
	case !ok:
		return len(b)
	}
	p.Splice = &splice{s.Pos, s.Length, s.Padding}
	p.Item = &item{s.Pos, s.Length}
	return len(b) + int(s.Length+s.Padding)
}

// travel says how the Reply would come back to the bridge.
func (e *explainer) travel(p *replyPart, k *knownCall, length int) {
	if k.analysis.MaxReply > 0 && k.planned {
		p.Bound = &bound{k.analysis.MaxReply, uint64(length) <= uint64(k.analysis.MaxReply)}
	}
	if !k.planned {
		return
	}
	s := &shape{Shape: shapeInline}
	whole := term{int64(length), "Reply"}
	switch k.shape.Reply {
	case ulb.ReplyInline:
		s.Steps = append(s.Steps, compare(shapeInline, e.replyInline, termHeader, whole))
	case ulb.ReplyWriteChunk:
		if p.Item != nil && p.Item.Length > 0 {
			s.Shape, s.Position, s.Octets = shapeWriteChunk, p.Item.Position, p.Item.Length
			data := -(int64(p.Item.Length+3) &^ 3)
			s.Steps = append(s.Steps, compare(shapeWriteChunk, e.replyInline, termHeader, termWriteList, whole, term{data, "data"}))
			break
		}
		s.Steps = append(s.Steps, compare(shapeInline, e.replyInline, termHeader, termWriteList, whole))
	case ulb.ReplyChunk:
		in := compare(shapeInline, e.replyInline, termHeader, termReplyChunk, whole)
		s.Steps = append(s.Steps, in)
		if !in.Holds {
			s.Shape, s.Octets = shapeReplyChunk, uint32(length)
			s.Steps = append(s.Steps, compare(shapeReplyChunk, int(k.shape.Capacity), whole))
		}
	}
	last := &s.Steps[len(s.Steps)-1]
	s.DecidedBy = "the Call's offer: " + replyShapes[k.shape.Reply]
	if !last.Holds {
		s.Shape = shapeNone
		s.DecidedBy = "the Reply is longer than what was offered for it"
	}
	p.Travel = s
}

// replyStatus is what the header of a Reply says.
func replyStatus(r *oncrpc.Reply) string {
	switch {
	case r.Denied && r.RejectStat == oncrpc.RPCMismatch:
		return fmt.Sprintf("MSG_DENIED, RPC_MISMATCH: versions %d to %d", r.Low, r.High)
	case r.Denied:
		return "MSG_DENIED, AUTH_ERROR: " + name(authStats, r.AuthStat, "auth_stat")
	case r.AcceptStat == oncrpc.ProgramMismatch:
		return fmt.Sprintf("PROG_MISMATCH: versions %d to %d", r.Low, r.High)
	}
	return name(acceptStats, r.AcceptStat, "accept_stat")
}

// programStatus is the status that results begin with, of the programs in which
// they do, "" for all others.
func programStatus(c *oncrpc.Call, r *oncrpc.Reply) string {
	if c.Procedure == 0 || len(r.Message) < r.Results+4 || !c.Reducible() {
		return ""
	}
	v := binary.BigEndian.Uint32(r.Message[r.Results:])
	switch {
	case c.Program == oncrpc.ProgramNFS && c.Version == 4:
		return nfsStatus(4, v)
	case c.Program == oncrpc.ProgramNFS, c.Program == oncrpc.ProgramNFSACL:
		return nfsStatus(c.Version, v)
	case c.Program == oncrpc.ProgramMount && c.Procedure == 1:
		if v == 0 {
			return "MNT3_OK"
		}
		return fmt.Sprintf("status %d", v)
	}
	return ""
}
