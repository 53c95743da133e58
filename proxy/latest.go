package proxy

import (
	"hash/maphash"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// Calls like those before
//
// Most Calls have the credential of the Call before them on their connection. Comparing it costs less than what would
// follow from it anew: the key of the XID, and which rule decides. So a connection remembers a credential, another one when
// several Calls in a row did not have it, and numbers those that it has remembered: Calls with one number have the same
// octets as credential, and the same rules can match them.
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
	// latestOthers is how many Calls in a row have another credential before theirs is remembered. Remembering costs
	// more than it saves where users take turns.
	latestOthers = 4
)

// A latestCalls is what a connection remembers of its latest Calls. It belongs to the connection's loop.
type latestCalls struct {
	number uint64 // of the credential that is remembered, and of the rules that can match it
	known  bool   // the latest Call has that credential; otherwise nothing here is about it
	keyed  bool   // key is that of the credential's user at the upstream of client
	others uint8  // Calls in a row that had another
	n      uint8  // of octets; 0: none is remembered
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

// see compares the credential of h, the connection's next Call, with the one that is remembered.
func (l *latestCalls) see(h *oncrpc.Call) {
	octets := h.Message[24 : 32+h.CredentialLen] // flavor, length and body: RFC 5531 Section 9
	l.known = string(octets) == string(l.octets[:l.n])
	if l.known {
		l.others = 0
		return
	}
	l.other(h, octets)
}

// other remembers the credential of h if it is time for another one. Those of RPCSEC_GSS have sequence numbers.
func (l *latestCalls) other(h *oncrpc.Call, octets []byte) {
	l.others++
	if l.n > 0 && l.others < latestOthers || len(octets) > latestCredential || h.Flavor != oncrpc.FlavorSys && h.Flavor != oncrpc.FlavorNone {
		l.others = min(l.others, latestOthers)
		return
	}
	l.forget()
	l.known, l.n = true, uint8(copy(l.octets[:], octets))
}

// forget makes all later Calls others.
func (l *latestCalls) forget() {
	l.number++
	l.known, l.keyed, l.others, l.n = false, false, 0, 0
}

// keyOf returns the key of the XID of h, the latest Call, at the upstream that client is for.
func (l *latestCalls) keyOf(seed maphash.Seed, users *credentialKeys, client *clientKey, h *oncrpc.Call) permutation {
	if !l.known {
		return users.find(seed, client, h)
	}
	if !l.keyed || l.client != *client {
		l.client, l.key, l.keyed = *client, users.find(seed, client, h), true
	}
	return l.key
}

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
	if !l.known || l.policy != p {
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
	if !l.known {
		return
	}
	l.passed[place(h, changes)] = passedCall{l.number, e, h.Program, h.Version, h.Procedure, changes}
}
