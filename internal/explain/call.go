package explain

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
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

// A credential is that of a Call.
type credential struct {
	Flavor  uint32   `json:"flavor"`
	Name    string   `json:"name"`
	Length  int      `json:"length"`
	Machine string   `json:"machine,omitempty"` // AUTH_SYS
	UID     *uint32  `json:"uid,omitempty"`
	GID     *uint32  `json:"gid,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
	GSS     *gss     `json:"gss,omitempty"`
	Means   string   `json:"means"` // for what may be placed directly
}

type gss struct {
	Version   uint32 `json:"version"`
	Procedure string `json:"procedure"`
	Service   string `json:"service,omitempty"` // of DATA
	Sequence  uint32 `json:"sequence"`
	Context   int    `json:"context"` // octets of the handle
}

type verifier struct {
	Flavor uint32 `json:"flavor"`
	Name   string `json:"name"`
	Length int    `json:"length"`
}

// A compound is an NFSv4 COMPOUND.
type compound struct {
	Tag        string  `json:"tag"`
	Minor      *uint32 `json:"minor_version,omitempty"` // of a Call
	Count      uint32  `json:"count"`
	Operations []op    `json:"operations"`
	Rest       string  `json:"rest,omitempty"` // what is wrong with the last of Operations, when not all are there
}

// An op is an operation of a COMPOUND or its result.
type op struct {
	Number uint32 `json:"number"`
	Name   string `json:"name,omitempty"`
	Status string `json:"status,omitempty"` // of a result
}

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

// remember keeps k for its Reply.
func (e *explainer) remember(m *message, c *capture.Message, k *knownCall) {
	key := callKey{c.Conn, c.Stream, k.call.XID}
	k.number = e.count + 1
	if before := e.calls[key]; before != nil && before.replies == 0 {
		if m.Call != nil && before.same(k) {
			m.Call.Retransmission = before.number
			k.number = before.number
		} else {
			e.unanswered++
		}
	}
	k.call.Message = nil // what a Reply needs is in k
	e.calls[key] = k
}

// same reports whether both are the same Call, as far as their headers say.
func (k *knownCall) same(o *knownCall) bool {
	a, b := &k.call, &o.call
	return k.known && o.known && k.args == o.args && a.Program == b.Program && a.Version == b.Version && a.Procedure == b.Procedure && a.Flavor == b.Flavor
}

func newCredential(h *oncrpc.Call) credential {
	d := credential{Flavor: h.Flavor, Name: flavorName(h.Flavor), Length: h.CredentialLen}
	body := h.Message[h.CredentialPos : h.CredentialPos+h.CredentialLen]
	switch h.Flavor {
	case oncrpc.FlavorSys:
		// stamp, machinename<255>, uid, gid, gids<16>: RFC 5531 Appendix A.
		x := xdr.NewCursor(body, 4)
		pos, n := x.Opaque()
		uid, gid, count := x.Uint32(), x.Uint32(), x.Uint32()
		at := x.Pos()
		if x.SkipArray(count, 4); x.OK() {
			d.Machine, d.UID, d.GID = printable(body[pos:pos+n]), &uid, &gid
			for x = xdr.NewCursor(body, at); count > 0; count-- {
				d.GIDs = append(d.GIDs, x.Uint32())
			}
		}
	case oncrpc.FlavorGSS:
		g := &h.GSS
		if h.Protection == oncrpc.ProtectUnknown && len(body) < 20 {
			break
		}
		d.GSS = &gss{Version: g.Version, Procedure: gssProcedure(g.Procedure), Sequence: g.Sequence, Context: g.HandleLen}
		if g.Procedure == oncrpc.GSSData {
			d.GSS.Service = gssService(g.Service)
		}
	}
	d.Means = means(h)
	return d
}

// means is what the credential allows, and why.
func means(h *oncrpc.Call) string {
	switch h.Protection {
	case oncrpc.ProtectIntegrity:
		return "nothing is placed directly: the checksum covers every octet, roundup included (RFC 8166 Section 8.2.2.3); arguments are readable, so that the Reply has a bound"
	case oncrpc.ProtectPrivacy:
		return "nothing is placed directly: arguments and results are encrypted, and nothing bounds the Reply but chunks.reply (RFC 8166 Section 8.2.2.3)"
	case oncrpc.ProtectControl:
		return "nothing is placed directly: the arguments are the GSS protocol's and not those of NULL (RFC 2203 Section 5.2, RFC 8166 Section 8.2.2)"
	case oncrpc.ProtectUnknown:
		if h.TLSProbe() {
			return "a question whether this side speaks TLS, and no credential"
		}
		return "nothing is placed directly: what this credential does to the arguments is not known"
	}
	if h.Flavor == oncrpc.FlavorGSS {
		return "plain: data may be placed directly; the XID is signed and stays, and the bridge never sends the Call twice"
	}
	return "plain: data may be placed directly"
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
