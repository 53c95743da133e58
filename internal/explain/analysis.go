package explain

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// An analysis describes what the binding of a program knows about a Call.
type analysis struct {
	Known      bool   `json:"known"`     // whether the binding decoded the arguments to their end
	Reducible  bool   `json:"reducible"` // whether the credential allows direct placement
	Class      string `json:"class"`     // read-only, idempotent, sequenced or non-idempotent
	Repeat     string `json:"repeat"`    // the meaning of Class
	Argument   *item  `json:"argument,omitempty"`
	ResultMax  uint32 `json:"result_max,omitempty"`
	MaxReply   uint32 `json:"max_reply"`
	MaxReduced uint32 `json:"max_reduced"`
	Bound      string `json:"bound"` // how MaxReply is calculated
}

// An item is the position and length of data that may be placed directly.
type item struct {
	Position uint32 `json:"position"`
	Length   uint32 `json:"length"`
}

// classNames and classMeans describe how Calls of each class may be repeated.
var classNames = [...]string{
	ulb.ReadOnly: "read-only", ulb.Idempotent: "idempotent", ulb.Sequenced: "sequenced", ulb.NonIdempotent: "non-idempotent",
}

var classMeans = [...]string{
	ulb.ReadOnly:      "the Call changes nothing",
	ulb.Idempotent:    "executing it twice is the same as executing it once",
	ulb.Sequenced:     "the server recognises a repetition and sends the same Reply",
	ulb.NonIdempotent: "executing it twice may fail or change more",
}

// newAnalysis describes a.
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

// boundReason says how a.MaxReply is calculated.
func (e *explainer) boundReason(h *oncrpc.Call, a *ulb.Analysis) string {
	max := e.registry.Limits().MaxReply
	switch {
	case h.Protection == oncrpc.ProtectControl:
		return fmt.Sprintf("header with a verifier of %d, and the results of the GSS protocol", oncrpc.MaxAuth)
	case h.Protection == oncrpc.ProtectPrivacy:
		return "the arguments are encrypted: chunks.reply"
	case h.Protection == oncrpc.ProtectUnknown:
		return "unknown credential: chunks.reply"
	case !a.Known && a.Procedure == "" && e.registry.Lookup(h.Program, h.Version) == ulb.Generic:
		return "unknown program or version: chunks.reply"
	case !a.Known && a.Procedure == "":
		return "unknown procedure: chunks.reply"
	case !a.Known:
		return "the bridge cannot decode the arguments to their end: chunks.reply; the server decides what they mean"
	case e.registry.IsDeclared(h.Program, h.Version) && h.Procedure != 0:
		return "programs declares how long the results get"
	case a.MaxReply == max:
		return "the procedure does not bound its results: chunks.reply"
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
