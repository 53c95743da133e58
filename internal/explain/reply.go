package explain

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// A replyPart describes a Reply.
type replyPart struct {
	Call          int      `json:"call,omitempty"` // number of its Call in the output; 0 if the Call is unknown
	Program       string   `json:"program_name,omitempty"`
	ProcedureName string   `json:"procedure_name,omitempty"`
	After         *float64 `json:"after,omitempty"` // seconds since the Call
	Duplicate     bool     `json:"duplicate,omitempty"`

	Accepted bool     `json:"accepted"`
	Status   string   `json:"status"` // accept_stat or reject_stat, with its parameters
	Verifier verifier `json:"verifier"`
	Length   int      `json:"length"` // of the whole Reply; 0 if the input has only a part

	// ProgramStatus is the status that the results begin with.
	ProgramStatus string    `json:"program_status,omitempty"`
	Compound      *compound `json:"compound,omitempty"`

	// Item is where the data that may be placed directly are in the whole Reply.
	Item *item `json:"item,omitempty"`
	// Splice is where the octets of the Write chunk belong in the Payload stream.
	Splice *splice `json:"splice,omitempty"`

	// Bound compares Length with the bound calculated for the Call.
	Bound  *bound `json:"bound,omitempty"`
	Travel *shape `json:"travel,omitempty"` // how the Reply would travel with the plan of its Call

	title string // knownCall.title
}

// A splice says where the data of a Write chunk belong in a Reply.
type splice struct {
	Position uint32 `json:"position"`
	Length   uint32 `json:"length"`
	Roundup  uint32 `json:"roundup"`
}

// A bound says whether a Reply is as short as calculated.
type bound struct {
	MaxReply uint32 `json:"max_reply"`
	Holds    bool   `json:"holds"`
}

// explainReply explains the Reply b. whole says that b is all of it.
func (e *explainer) explainReply(m *message, c *capture.Message, b []byte, whole bool) error {
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(b, &r); err != nil {
		m.Kind, m.Problem = kindMalformed, rpcProblem("Reply", b, err)
		if !whole && errors.Is(err, oncrpc.ErrShort) {
			m.Kind, m.Problem = kindCut, fmt.Sprintf("the input has %d octets of a Reply: too few for its header", len(b))
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
		if e.match(p, k, c.Time); !k.parsed {
			k = nil // the header of the Call is unknown
		}
	}
	// The length of a Reply includes the data in its Write chunks.
	length := len(b)
	if c.RDMA != nil && k != nil && len(c.RDMA.Writes) > 0 {
		length = e.spliced(m, p, c, k, b, whole)
	}
	if !whole {
		m.note("the input has only %d octets of the Reply", len(b))
	} else {
		p.Length = length
	}
	if k != nil && r.Succeeded() {
		p.ProgramStatus = programStatus(&k.call, &r)
		p.Compound = e.newResults(k, &r)
	}
	if k != nil && whole {
		e.learn(k, b, e.count+1)
		if p.Splice == nil && k.call.Reducible() {
			if s, ok := ulb.Reducible(k.binding, k.call.Procedure, b); ok {
				p.Item = &item{s.Pos, s.Length}
			}
		}
		e.travel(p, k, length)
	}
	return e.show(m)
}

// spliced finds where the octets of the Write chunk belong in the Reply b. It returns
// the length of the whole Reply.
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
		m.note("no Write chunk was used: the Reply is complete without it")
		return len(b)
	}
	if used > 1 {
		total := 0
		for i := range c.RDMA.Writes {
			total += int(c.RDMA.Writes[i].Length+3) &^ 3
		}
		m.note("%d Write chunks were used; the bridge itself offers one at most", used)
		return len(b) + total
	}
	s, ok, err := ulb.Restore(k.binding, k.call.Procedure, b, uint32(c.RDMA.Writes[at].Length))
	switch {
	case err != nil:
		m.note("the data of the Write chunk do not fit the Reply: %v", err)
		return len(b)
	case !ok:
		return len(b)
	}
	p.Splice = &splice{s.Pos, s.Length, s.Padding}
	p.Item = &item{s.Pos, s.Length}
	return len(b) + int(s.Length+s.Padding)
}

// travel says how the Reply would travel to the bridge.
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
	s.DecidedBy = "the offer of the Call: " + replyShapes[k.shape.Reply]
	if !last.Holds {
		s.Shape = shapeNone
		s.DecidedBy = "the offer of the Call, which is too small for the Reply"
	}
	p.Travel = s
}

// replyStatus returns the status in the header of a Reply.
func replyStatus(r *oncrpc.Reply) string {
	switch {
	case r.Denied && r.RejectStat == oncrpc.RPCMismatch:
		return fmt.Sprintf("MSG_DENIED, RPC_MISMATCH: versions %d to %d", r.Low, r.High)
	case r.Denied:
		return "MSG_DENIED, AUTH_ERROR: " + oncrpc.AuthStatName(r.AuthStat)
	case r.AcceptStat == oncrpc.ProgramMismatch:
		return fmt.Sprintf("PROG_MISMATCH: versions %d to %d", r.Low, r.High)
	}
	return name(acceptStats, r.AcceptStat, "accept_stat")
}

// programStatus returns the status that the results of r begin with. It returns "" for
// programs whose results begin otherwise.
func programStatus(c *oncrpc.Call, r *oncrpc.Reply) string {
	if c.Procedure == 0 || len(r.Message) < r.Results+4 || !c.Reducible() {
		return ""
	}
	v := binary.BigEndian.Uint32(r.Message[r.Results:])
	switch {
	case c.Program == oncrpc.ProgramNFS && c.Version == 4:
		return nfs.StatusName(4, v)
	case c.Program == oncrpc.ProgramNFS, c.Program == oncrpc.ProgramNFSACL:
		return nfs.StatusName(c.Version, v)
	case c.Program == oncrpc.ProgramMount && c.Procedure == 1:
		if v == 0 {
			return "MNT3_OK"
		}
		return fmt.Sprintf("status %d", v)
	}
	return ""
}
