package explain

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// A callPart describes a Call.
type callPart struct {
	Program       uint32     `json:"program"`
	ProgramName   string     `json:"program_name,omitempty"`
	Version       uint32     `json:"version"`
	Procedure     uint32     `json:"procedure"`
	ProcedureName string     `json:"procedure_name,omitempty"` // of a COMPOUND: the operation that says most about it
	Length        int        `json:"length"`                   // of the whole Call; 0 if the input has only a part
	Credential    credential `json:"credential"`
	Verifier      verifier   `json:"verifier"`
	Protection    string     `json:"protection"` // none, integrity, privacy, control, unknown
	Arguments     int        `json:"arguments"`  // position of the arguments, after what RPCSEC_GSS integrity puts before them
	Compound      *compound  `json:"compound,omitempty"`

	Reverse        bool `json:"reverse,omitempty"`        // from the server to the client, RFC 8167
	Retransmission int  `json:"retransmission,omitempty"` // of the message with this number

	// Local is the Reply of the bridge if the bridge does not forward the Call.
	Local string `json:"local,omitempty"`

	// File is what the Call is about. It is nil without Options.Files.
	File *file `json:"file,omitempty"`

	// Rules is what the rules of the listener say, in order; the last one that matches and has an effect ends it.
	Rules *ruled `json:"rules,omitempty"`

	// Choice is nil if the bridge answers the Call or the input has only a part of it.
	Choice *choice `json:"choice,omitempty"`

	// Analysis and Plan are nil if the bridge answers the Call or the input has only a
	// part of it. A reverse Call has a Plan only.
	Analysis *analysis `json:"analysis,omitempty"`
	Plan     *plan     `json:"plan,omitempty"`
}

// explainCall explains the Call b. whole says that b is all of it.
func (e *explainer) explainCall(m *message, c *capture.Message, b []byte, whole bool) error {
	k := &knownCall{at: c.Time, length: len(b)}
	h := &k.call
	if err := oncrpc.ParseCall(b, h); err != nil {
		m.Kind, m.Problem = kindMalformed, rpcProblem("Call", b, err)
		if !whole && errors.Is(err, oncrpc.ErrShort) {
			m.Kind, m.Problem = kindCut, fmt.Sprintf("the input has %d octets of a Call: too few for its header", len(b))
			e.remember(m, c, k)
		}
		return e.show(m)
	}
	m.Kind, k.parsed = kindCall, true
	k.binding = e.registry.Analyse(h, &k.analysis)
	unlimited := k.analysis.MaxReply
	if id, ok := nfs.SequenceSession(b, &k.analysis); ok {
		if l, ok := e.limits[id]; ok {
			l.Tighten(b, &k.analysis)
		}
	}
	m.Call = e.newCall(k, len(b))
	if m.conn != nil {
		if m.conn.calls == nil {
			m.conn.calls = c.Stream
		}
		m.Call.Reverse = m.conn.calls != c.Stream
	}
	if whole {
		e.planCall(m.Call, k, len(b), unlimited)
		if e.rules != nil && !m.Call.Reverse && !h.TLSProbe() {
			m.Call.Rules = e.rules.judge(c, h, k.analysis.Changes)
		}
	} else {
		m.Call.Length = 0
		m.note("the input has %d octets of the Call, which is too little to say how it would travel", len(b))
	}
	e.remember(m, c, k)
	return e.show(m)
}

// newCall describes the header and the operations of k, whose message has length octets.
func (e *explainer) newCall(k *knownCall, length int) *callPart {
	h := &k.call
	p := &callPart{
		Program: h.Program, ProgramName: oncrpc.ProgramName(h.Program), Version: h.Version, Procedure: h.Procedure,
		ProcedureName: strings.TrimPrefix(k.analysis.Procedure, "COMPOUND/"),
		Length:        length, Credential: newCredential(h), Protection: h.Protection.String(), Arguments: h.Args,
		Verifier: verifier{h.VerifierFlavor, flavorName(h.VerifierFlavor), h.VerifierLen},
	}
	if start, _, ok := h.Arguments(); ok {
		p.Arguments = start
	}
	if p.Compound = e.newCompound(h, &k.analysis); p.Compound != nil {
		k.operations = p.Compound.Operations
	}
	if h.Program == oncrpc.ProgramCallbacks {
		p.ProgramName = "nfs-callback"
	}
	k.title = callName(p)
	return p
}

// planCall says how the Call k would travel, or what the bridge would answer. unlimited
// is the bound of the Reply without the limits of an NFSv4.1 session.
func (e *explainer) planCall(p *callPart, k *knownCall, length int, unlimited uint32) {
	h, a := &k.call, &k.analysis
	switch {
	case h.TLSProbe():
		p.Local = "success without STARTTLS in the verifier: the bridge does not support TLS (RFC 9289 Section 4.1)"
	case h.Program == oncrpc.ProgramCCP:
		p.Local = "PROG_UNAVAIL: CCP concerns only the connection that its Call arrives on (RFC 5666 Section 6)"
	case p.Reverse:
		p.Choice = e.newReverseChoice(h)
		p.Plan = e.reversePlan(length)
	default:
		p.Analysis = e.newAnalysis(h, a)
		if a.MaxReply < unlimited {
			p.Analysis.Bound = fmt.Sprintf("the limit of the session; without it %d", unlimited)
		}
		p.Choice = e.newChoice(h, a)
		p.Plan = e.newPlan(h, a, length, k)
	}
}
