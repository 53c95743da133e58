package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// Calls like those before
//
// Most Calls have the credential of the Call before them on their connection. Comparing it costs less than what would
// follow from it anew: the key of the XID, and which rule decides. So a connection remembers the credential of its latest
// Call, and numbers the credentials: Calls with one number have the same octets as credential, and the same rules
// can match them.
//
// Under that number it remembers by which rule the latest Calls went on as they are, without an answer, an upstream or
// another user from a rule. The rest of what rules look at is compared: the program, the version and the procedure,
// and whether the Call changes files, which follows from the operations of a COMPOUND and is found anew for each Call.
// All other Calls ask a rules.Judge.

const (
	// latestCredential is how many octets of a credential are remembered, with its flavor and length: a host name of
	// 48 octets and 16 groups fit.
	latestCredential = 144
	// latestPassed is how many kinds of Calls are remembered; a power of two. A mount of NFSv3 sends some eight kinds
	// again and again, and one of NFSv4 two: COMPOUNDs that change files, and others.
	latestPassed = 8
)

// A latestCalls is what a connection remembers of its latest Calls. It belongs to the connection's loop.
type latestCalls struct {
	number uint64 // of the latest Call's credential, and of the rules that can match it
	keyed  bool   // key is that of the latest Call's user at the upstream of client
	n      uint8  // of octets; 0: the credential is not remembered, and the next one is another
	client clientKey
	key    permutation
	octets [latestCredential]byte

	policy *policy                   // that the rest is about; nil before the first Call, after TLS has begun, and without rules
	bound  *rules.Bound              // of policy
	passed *[latestPassed]passedCall // by place; nil like policy
}

// A passedCall is a kind of Calls that went on as they are.
type passedCall struct {
	number                      uint64
	effect                      *ruleEffect // of the rule that let them, or of none
	program, version, procedure uint32
	changes                     bool
}

// see compares the credential of h with that of the Call before. Those of AUTH_SYS and AUTH_NONE are remembered;
// those of RPCSEC_GSS have sequence numbers.
func (l *latestCalls) see(h *oncrpc.Call) {
	octets := h.Message[24 : 32+h.CredentialLen] // flavor, length and body: RFC 5531 Section 9
	if string(octets) == string(l.octets[:l.n]) {
		return
	}
	l.number++
	l.forget()
	if len(octets) <= latestCredential && (h.Flavor == oncrpc.FlavorSys || h.Flavor == oncrpc.FlavorNone) {
		l.n = uint8(copy(l.octets[:], octets))
	}
}

// forget makes the credential of the next Call another one.
func (l *latestCalls) forget() { l.n, l.keyed = 0, false }

// bind makes b the rules that can match the connection's Calls. Nothing that passed by others counts any more.
func (l *latestCalls) bind(p *policy, b *rules.Bound) {
	l.number++
	l.policy, l.bound = p, b
	if l.passed == nil {
		l.passed = new([latestPassed]passedCall)
	}
}

// place is where a Call is remembered.
func place(h *oncrpc.Call, changes bool) uint32 {
	i := h.Procedure
	if changes {
		i += latestPassed / 2
	}
	return i % latestPassed
}

// let returns the effect of the rule of p by which a Call like h went on as it is; nil if there was none.
func (l *latestCalls) let(p *policy, h *oncrpc.Call, changes bool) *ruleEffect {
	if l.policy != p {
		return nil
	}
	e := &l.passed[place(h, changes)]
	if e.number != l.number || e.program != h.Program || e.version != h.Version || e.procedure != h.Procedure || e.changes != changes {
		return nil
	}
	return e.effect
}

// pass remembers that h went on as it is because of e.
func (l *latestCalls) pass(h *oncrpc.Call, changes bool, e *ruleEffect) {
	if l.n == 0 {
		return // the next Call has another number
	}
	l.passed[place(h, changes)] = passedCall{l.number, e, h.Program, h.Version, h.Procedure, changes}
}
