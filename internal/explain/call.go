package explain

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// A callPart is what there is to say of a Call.
type callPart struct {
	Program       uint32     `json:"program"`
	ProgramName   string     `json:"program_name,omitempty"`
	Version       uint32     `json:"version"`
	Procedure     uint32     `json:"procedure"`
	ProcedureName string     `json:"procedure_name,omitempty"` // of a COMPOUND, that of its most telling operation
	Length        int        `json:"length"`                   // of the whole Call
	Credential    credential `json:"credential"`
	Verifier      verifier   `json:"verifier"`
	Protection    string     `json:"protection"` // none, integrity, privacy, control, unknown
	Arguments     int        `json:"arguments"`  // where they begin, inside of what integrity wraps around them
	Compound      *compound  `json:"compound,omitempty"`

	Reverse        bool `json:"reverse,omitempty"`        // from the server to the client, RFC 8167
	Retransmission int  `json:"retransmission,omitempty"` // of the message with this number

	// Local is the Reply that the bridge makes itself; the Call goes nowhere then.
	Local string `json:"local,omitempty"`

	// What the binding found; not there when the Call was not captured whole.
	Analysis *analysis `json:"analysis,omitempty"`
	Plan     *plan     `json:"plan,omitempty"`
}

// explainCall explains the Call b, of which whole is whether all of it is there.
func (e *explainer) explainCall(m *message, c *capture.Message, b []byte, whole bool) error {
	k := &knownCall{at: c.Time, args: len(b)}
	h := &k.call
	if err := oncrpc.ParseCall(b, h); err != nil {
		m.Kind, m.Problem = kindMalformed, rpcProblem("Call", b, err)
		if !whole && errors.Is(err, oncrpc.ErrShort) {
			m.Kind, m.Problem = kindCut, fmt.Sprintf("a Call of which %d octets are in the input: too few for its header", len(b))
			e.remember(m, c, k)
		}
		return e.show(m)
	}
	m.Kind, k.known = kindCall, true
	p := &callPart{
		Program: h.Program, ProgramName: oncrpc.ProgramName(h.Program), Version: h.Version, Procedure: h.Procedure,
		Length: len(b), Credential: newCredential(h), Protection: h.Protection.String(), Arguments: h.Args,
		Verifier: verifier{h.VerifierFlavor, flavorName(h.VerifierFlavor), h.VerifierLen},
	}
	m.Call = p
	if start, _, ok := h.Arguments(); ok {
		p.Arguments = start
	}
	var a ulb.Analysis
	k.binding = e.registry.Analyse(h, &a)
	bounded := a.MaxReply
	if a.Session != 0 {
		e.sessions.Tighten(b, &a)
	}
	k.analysis = a
	p.ProcedureName = strings.TrimPrefix(a.Procedure, "COMPOUND/")
	if p.Compound = e.newCompound(h, &a); p.Compound != nil {
		k.operations = p.Compound.Operations
	}
	if h.Program == oncrpc.ProgramCallbacks {
		p.ProgramName = "nfs-callback"
	}
	if m.conn != nil {
		if m.conn.calls == nil {
			m.conn.calls = c.Stream
		}
		p.Reverse = m.conn.calls != c.Stream
	}
	k.title = callName(p)
	e.remember(m, c, k)
	switch {
	case !whole:
		p.Length = 0
		m.note("%d octets of the Call are in the input, not all: how it would travel cannot be told", len(b))
		return e.show(m)
	case h.TLSProbe():
		p.Local = "success without STARTTLS in the verifier: there is no TLS here (RFC 9289 Section 4.1)"
	case h.Program == oncrpc.ProgramCCP:
		p.Local = "PROG_UNAVAIL: CCP is about the connection it comes on (RFC 5666 Section 6)"
	case p.Reverse:
		p.Plan = e.reversePlan(len(b))
	default:
		p.Analysis = e.newAnalysis(h, &a)
		if a.MaxReply < bounded {
			p.Analysis.Bound = fmt.Sprintf("what the session allows; without one %d", bounded)
		}
		p.Plan = e.newPlan(h, &a, len(b), k)
	}
	return e.show(m)
}
