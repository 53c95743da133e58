package explain

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// An analysis is what the binding of a program knows of a Call.
type analysis struct {
	Known      bool   `json:"known"`     // the arguments were walked to their end
	Reducible  bool   `json:"reducible"` // the credential allows direct placement
	Class      string `json:"class"`     // read-only, idempotent, sequenced, non-idempotent
	Repeat     string `json:"repeat"`    // what that means
	Argument   *item  `json:"argument,omitempty"`
	ResultMax  uint32 `json:"result_max,omitempty"`
	MaxReply   uint32 `json:"max_reply"`
	MaxReduced uint32 `json:"max_reduced"`
	Bound      string `json:"bound"` // why
}

type item struct {
	Position uint32 `json:"position"`
	Length   uint32 `json:"length"`
}

var classNames = [...]string{
	ulb.ReadOnly: "read-only", ulb.Idempotent: "idempotent", ulb.Sequenced: "sequenced", ulb.NonIdempotent: "non-idempotent",
}

var classMeans = [...]string{
	ulb.ReadOnly:      "changes nothing",
	ulb.Idempotent:    "the second time leaves things as the first",
	ulb.Sequenced:     "the server knows a repetition and answers it again",
	ulb.NonIdempotent: "would change things again, or fail",
}

// newAnalysis puts a in words.
func (e *explainer) newAnalysis(h *oncrpc.Call, a *ulb.Analysis) *analysis {
	n := &analysis{
		Known: a.Known, Reducible: a.Reduce, ResultMax: a.ResultMax, MaxReply: a.MaxReply, MaxReduced: a.MaxReduced,
		Class: classNames[a.Class], Repeat: classMeans[a.Class],
	}
	if a.ArgLength > 0 {
		n.Argument = &item{a.ArgPosition, a.ArgLength}
	}
	n.Bound = e.boundReason(h, a)
	return n
}

// boundReason says what a.MaxReply is made of.
func (e *explainer) boundReason(h *oncrpc.Call, a *ulb.Analysis) string {
	max := e.registry.Limits().MaxReply
	switch {
	case h.Protection == oncrpc.ProtectControl:
		return fmt.Sprintf("header with a verifier of %d, and what the GSS protocol answers", oncrpc.MaxAuth)
	case h.Protection == oncrpc.ProtectPrivacy:
		return "the arguments are encrypted: chunks.reply"
	case h.Protection == oncrpc.ProtectUnknown:
		return "unknown credential: chunks.reply"
	case !a.Known && a.Procedure == "" && e.registry.Lookup(h.Program, h.Version) == ulb.Generic:
		return "a program or version that is not known: chunks.reply"
	case !a.Known && a.Procedure == "":
		return "a procedure that is not known: chunks.reply"
	case !a.Known:
		return "the arguments could not be walked to their end: chunks.reply, and the server is to judge them"
	case a.MaxReply == max:
		return "the procedure returns whatever there is: chunks.reply"
	}
	header := uint32(oncrpc.ReplyHeader)
	s := fmt.Sprintf("header %d", header)
	switch {
	case h.Protection == oncrpc.ProtectIntegrity:
		header += 2*oncrpc.MaxAuth + 12
		s += fmt.Sprintf(" + verifier %d + integrity %d", oncrpc.MaxAuth, oncrpc.MaxAuth+12)
	case h.Flavor == oncrpc.FlavorGSS || h.Flavor == oncrpc.FlavorShort:
		header += oncrpc.MaxAuth
		s += fmt.Sprintf(" + verifier %d", oncrpc.MaxAuth)
	}
	if a.ResultMax > 0 {
		return fmt.Sprintf("%s + results %d + data %d", s, a.MaxReduced-header, a.MaxReply-a.MaxReduced)
	}
	return fmt.Sprintf("%s + results %d", s, a.MaxReply-header)
}
