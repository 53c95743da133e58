package explain

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// The values of pool.mode. The choices of auto are those of sessions.
const (
	modeAuto     = "auto"
	modeShared   = "shared"
	modePinned   = "pinned"
	modeSessions = "sessions"
)

// The kinds of a choice.
const (
	choiceAny     = "any"     // any connection with a free credit
	choiceContext = "context" // the connection of an RPCSEC_GSS context
	choiceStays   = "stays"   // the connection that the client's connection stays with
	choicePinned  = "pinned"  // the connection that the client's connection has for itself
	choiceSession = "session" // reverse: the client of the session
	choiceProgram = "program" // reverse: a client with the callback program
	choiceNone    = "none"    // reverse: no client
)

// A choice says which of the upstream's connections a Call would take, or which client would get a
// reverse Call.
type choice struct {
	Kind    string   `json:"kind"`
	Takes   string   `json:"takes"`
	Why     []string `json:"why"`
	Session string   `json:"session,omitempty"` // the NFSv4.1 session that decides, in hex
}

func (c *choice) why(format string, args ...any) { c.Why = append(c.Why, fmt.Sprintf(format, args...)) }

// newChoice chooses for the Call h with the Analysis a.
func (e *explainer) newChoice(h *oncrpc.Call, a *ulb.Analysis) *choice {
	c := &choice{Kind: choiceStays, Takes: "the connection that its client's connection stays with until it ends"}
	minor, known := nfs.MinorVersion(h)
	encrypted := h.Program == oncrpc.ProgramNFS && h.Version == 4 && h.Procedure != 0 && h.Protection == oncrpc.ProtectPrivacy
	sessions := known && minor > 0 || encrypted
	switch {
	case e.mode == modePinned:
		c.Kind, c.Takes = choicePinned, "the pinned connection of its client's connection"
		c.why("pool.mode pinned: each client connection has one")
	case e.mode == modeShared || !sessions:
		c.shared(e.mode, h, a)
		if !sessions {
			return c
		}
	case encrypted:
		c.why("pool.mode %s: the arguments are encrypted, and it may be NFSv4.1 if the client's connection has not used NFSv4.0", e.mode)
	default:
		c.why("pool.mode %s: NFSv4.1 or later. At the client's first COMPOUND the bridge chose one with few clients", e.mode)
	}
	c.operations(h, a)
	return c
}

// shared chooses among the connections that all Calls share.
func (c *choice) shared(mode string, h *oncrpc.Call, a *ulb.Analysis) {
	c.Kind, c.Takes = choiceAny, "any connection with a free credit"
	if mode == modeShared {
		c.why("pool.mode shared: all Calls do")
	} else {
		c.why("pool.mode %s: not NFSv4.1 or later. A client connection that has used that keeps its connection for all Calls", mode)
	}
	switch {
	case h.Flavor == oncrpc.FlavorGSS && h.Protection != oncrpc.ProtectControl && h.Protection != oncrpc.ProtectUnknown:
		c.Kind, c.Takes = choiceContext, "the connection that has the Calls of its RPCSEC_GSS context"
		c.why("RPCSEC_GSS: the server drops a Call whose sequence number comes too late, so the Calls of a context stay in order")
	case a.Class == ulb.NonIdempotent && a.Session == 0:
		c.why("towards TCP: the one of its client's address. Executing it twice would do harm, and the server may know a repetition only there")
	}
}

// operations says what the operations of a COMPOUND mean for sessions and connections.
func (c *choice) operations(h *oncrpc.Call, a *ulb.Analysis) {
	if id, ok := nfs.SequenceSession(h.Message, a); ok {
		c.Session = fmt.Sprintf("%x", id)
		c.why("SEQUENCE: the server binds session %x to the connection it comes on, unless the client protects its state (SP4_MACH_CRED)", id)
	}
	if a.SessionOps&ulb.ExchangeID != 0 {
		c.why("EXCHANGE_ID: makes a client ID. The client creates its sessions on the same connection")
	}
	if a.SessionOps&ulb.CreateSession != 0 {
		program, _ := nfs.CallbackProgram(h.Message, a)
		c.why("CREATE_SESSION: binds the new session to the connection. If the Reply has CONN_BACK_CHAN, callbacks for program 0x%08x go to this client", program)
	}
	if a.SessionOps&ulb.BindConnToSession != 0 {
		c.why("BIND_CONN_TO_SESSION: binds another connection to a session. If the Reply says BACK or BOTH, the session's callbacks go to this client connection")
	}
	if id, ok := nfs.DestroyedSession(h); ok {
		c.why("DESTROY_SESSION: when the server has ended session %x, the bridge forgets it", id)
	}
}

// newReverseChoice chooses for the reverse Call h.
func (e *explainer) newReverseChoice(h *oncrpc.Call) *choice {
	id, named := nfs.CallbackSession(h)
	c := new(choice)
	switch {
	case e.mode == modeShared:
		c.Kind, c.Takes = choiceNone, "no client: the bridge answers PROG_UNAVAIL"
		c.why("pool.mode shared: the bridge does not know which client it is for")
	case e.mode == modePinned:
		c.Kind, c.Takes = choicePinned, "the client that the pinned connection belongs to"
		c.why("pool.mode pinned: each client connection has one")
	case named:
		c.Kind, c.Takes = choiceSession, fmt.Sprintf("the client of session %x", id)
		c.Session = fmt.Sprintf("%x", id)
		c.why("CB_SEQUENCE names the session. Its client connection is the one that the server has accepted for the back channel, by CREATE_SESSION or BIND_CONN_TO_SESSION")
		if n := e.bound[id]; n != 0 {
			c.why("the Reply #%d did that", n)
		}
		if h.Flavor == oncrpc.FlavorGSS {
			c.why("while the client is away, the bridge answers SYSTEM_ERR: it cannot sign another answer")
		} else {
			c.why("while the client is away, the bridge answers NFS4ERR_DELAY for 20 s, and then SYSTEM_ERR")
		}
	case h.Procedure == 0:
		c.Kind, c.Takes = choiceProgram, fmt.Sprintf("the client that was the last to name callback program 0x%08x on the server's connection", h.Program)
		c.why("CB_NULL names no session")
	default:
		c.Kind, c.Takes = choiceNone, "no client: the bridge answers SYSTEM_ERR"
		c.why("it does not begin with CB_SEQUENCE, or its arguments are encrypted, so no session tells the client")
	}
	return c
}

// learn remembers which message has bound the back channel of a session. b is the whole Reply with
// this number to k.
func (e *explainer) learn(k *knownCall, b []byte, number int) {
	a := &k.analysis
	if a.SessionOps&ulb.CreateSession != 0 {
		if id, l, ok := nfs.CreatedLimits(b, a); ok {
			e.limits[id] = l
		}
		if id, back, ok := nfs.CreatedSession(b, a); ok && back {
			e.bound[id] = number
		}
	}
	if a.SessionOps&ulb.BindConnToSession != 0 {
		if id, back, ok := nfs.BoundSession(b, a); ok && back {
			e.bound[id] = number
		}
	}
}
