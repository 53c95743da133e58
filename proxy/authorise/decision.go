package authorise

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// A Decision is what a policy says of a Call.
type Decision struct {
	Rule      *rules.Rule // that matches the Call; nil for none
	Index     int         // of Rule, and -1 for none
	Denied    bool        // Rule denies the Call
	Routed    bool        // Rule says to which upstream the Call goes
	Always    bool        // Rule decides so about all Calls of the client
	Limits    int         // the number of the first rule with action Limit that matches the Call, from 1 on; 0: none does
	Malformed bool        // the credential cannot be read; the rest is not set

	squash rules.Squash
}

// Decide decides about the Call h by the policy that the cache is bound to, and counts it for the rules that match it.
// The arguments are those of Passes.
func (d *Cache) Decide(user uint64, h *oncrpc.Call, changes bool, now int64) (x Decision) {
	on := d.on
	rule, always := d.bound.Always()
	var dry []uint8
	limits := 0
	if !always {
		if rule, dry, x.Malformed = on.judge.Decide(d.bound, h, d.policy.facts(h, changes)); x.Malformed {
			return x
		}
		for _, r := range dry {
			e := &on.effects[r]
			e.count(now)
			if limits == 0 && e.limits() {
				limits = int(r) + 1
			}
		}
	}
	e := on.effect(rule)
	if len(dry) == 0 && e.passes() && d.policy.exports == nil { // handles are not compared
		d.pass(user, h, changes, e)
	}
	if rule >= 0 {
		e.count(now)
	}
	x = e.decision(rule, always)
	x.Limits = limits
	return x
}

// DecideAgain decides about what is left of the Call h after it was cut. It counts nothing: the Call was counted.
func (d *Cache) DecideAgain(h *oncrpc.Call, changes bool) Decision {
	rule, _, _ := d.on.judge.Decide(d.bound, h, d.policy.facts(h, changes))
	return d.on.effect(rule).decision(rule, false)
}

// decision returns the Decision of the rule with this index, whose effect is e.
func (e *effect) decision(rule int, always bool) Decision {
	return Decision{Rule: e.rule, Index: rule, Denied: e.denies(), Routed: e.routes(), Always: always, squash: e.squash}
}

// Squash maps the user of the Call h as x says, and counts it. It returns the auth_stat to reject h with, or 0.
func (d *Cache) Squash(x *Decision, h *oncrpc.Call) (mapped bool, stat uint32) {
	if x.squash == rules.SquashOff {
		return false, 0
	}
	if mapped, stat = d.policy.squash.apply(h, x.squash); mapped {
		d.on.squashed.Inc()
	}
	return mapped, stat
}

// AppendDenial appends the Reply with which the rule r denies the Call h. It returns nil if r says that the connection
// is closed instead. session is whether h is a COMPOUND that begins with SEQUENCE.
func AppendDenial(b []byte, h *oncrpc.Call, r *rules.Rule, session bool) []byte {
	switch {
	case r.Answer == rules.AnswerClose:
		return nil
	case r.Answer == rules.AnswerAuth:
		return oncrpc.AppendAuthError(b, h.XID, oncrpc.AuthTooWeak)
	case r.Answer == rules.AnswerUnavailable && !needsVerifier(h):
		return oncrpc.AppendAccepted(b, h.XID, oncrpc.ProgramUnavailable)
	}
	return AppendRefusal(b, h, nfs.ReadOnly, session)
}

// AppendRefusal appends the Reply that refuses the change h, which was not cut. session is that of AppendDenial.
func AppendRefusal(b []byte, h *oncrpc.Call, why nfs.Refusal, session bool) []byte {
	switch {
	case needsVerifier(h):
		return oncrpc.AppendAuthError(b, h.XID, oncrpc.AuthTooWeak)
	case session: // it cannot be read to its end, or it would have been cut
		return oncrpc.AppendAccepted(b, h.XID, oncrpc.GarbageArguments)
	}
	return nfs.RefusalReply(h, why)
}

// Cuts reports whether only the server can give the error that refuses the change h: h is cut, and goes to the server
// without the operation that is refused. session is that of AppendDenial.
func Cuts(h *oncrpc.Call, session bool) bool { return session || needsVerifier(h) }

// needsVerifier reports whether a Reply to h needs a verifier that only the server can make. A Reply that denies
// has none.
func needsVerifier(h *oncrpc.Call) bool {
	return h.Flavor != oncrpc.FlavorNone && h.Flavor != oncrpc.FlavorSys && h.Flavor != oncrpc.FlavorShort
}
