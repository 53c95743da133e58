package proxy

import (
	"errors"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
)

// Rules and Calls
//
// A listener with a policy asks it about each Call before the Call is routed. A Call that is denied is answered
// here, with one exception: a COMPOUND that uses a slot of a session can only be answered by the server, and goes
// there without the operation that is denied (nfs.Cut). No rule sees the AUTH_TLS probe, which is about the
// connection.

var errDenied = errors.New("proxy: a rule denies the Call")

// obey applies the policy of s to c, which is read, parsed and analysed, and routes it. It returns the upstream, or
// nil after c was answered or its client was closed.
func (f *front) obey(c *call, s *listenerSettings) *upstream {
	h, p := &c.h, s.policy
	if h.TLSProbe() {
		return f.route(c, s, nil)
	}
	on, l, changes := &p.on[f.loop.index], f.latest, c.rdma.Analysis.Changes
	if l.policy != p {
		f.bind(p, on)
	}
	b := l.bound
	rule, always := b.Always()
	var dry []uint8
	if !always {
		var malformed bool
		if rule, dry, malformed = on.judge.Decide(b, h, changes); malformed {
			f.answer(c, oncrpc.AppendAuthError(c.local[:0], h.XID, oncrpc.AuthBadCredential))
			return nil
		}
		for _, r := range dry {
			on.effects[r].count(f)
		}
	}
	e := on.effect(rule)
	if len(dry) == 0 && e.passes() {
		l.pass(h, changes, e)
	}
	if rule >= 0 {
		e.count(f)
		if e.upstream != nil || e.denies != nil {
			f.remember(c, e.rule)
		}
		if e.denies != nil {
			if always || !f.cut(c, e.denies) {
				f.deny(c, e.denies)
				return nil
			}
			// What is left of it changes nothing.
			if e = on.after(b, c); e.denies != nil {
				f.deny(c, e.denies)
				return nil
			}
		}
	}
	if e.squash != rules.SquashOff {
		switch mapped, stat := p.squash.apply(h, e.squash); {
		case stat != 0:
			f.answer(c, oncrpc.AppendAuthError(c.local[:0], h.XID, stat))
			return nil
		case mapped:
			l.forget() // it is about the user as the client has sent it
			on.squashed.Inc()
		}
	}
	return f.route(c, s, e.upstream)
}

// effect returns the effect of rule, which is -1 for none.
func (on *loopPolicy) effect(rule int) *ruleEffect {
	if rule >= 0 {
		return &on.effects[rule]
	}
	return &on.other
}

// passes reports whether a Call goes on as if there were no rule.
func (e *ruleEffect) passes() bool {
	return e.denies == nil && e.upstream == nil && e.squash == rules.SquashOff
}

// count counts a Call of f that the rule of e has matched.
func (e *ruleEffect) count(f *front) {
	e.calls.Inc()
	e.latest = f.totals.active // when the Call was read
}

// remember has c remember that r decided about it, if there is an Observer who wants to know.
func (f *front) remember(c *call, r *rules.Rule) {
	if f.listener.p.observer.Load() != nil {
		c.rule, c.usesSeldom = r, true
	}
}

// after returns the effect of the rules on what cut has left of c. It counts nothing: the Call was counted.
func (on *loopPolicy) after(b *rules.Bound, c *call) *ruleEffect {
	rule, _, _ := on.judge.Decide(b, &c.h, c.rdma.Analysis.Changes)
	return on.effect(rule)
}

// deny answers c as r has it, or closes the connection.
func (f *front) deny(c *call, r *rules.Rule) {
	h, local := &c.h, c.local[:0]
	f.logDenied(c, r)
	switch {
	case r.Answer == rules.AnswerClose:
		c.result = resultAbandoned
		f.fail(errDenied)
		f.settle(c)
	case needsVerifier(h), r.Answer == rules.AnswerAuth:
		f.answer(c, oncrpc.AppendAuthError(local, h.XID, oncrpc.AuthTooWeak))
	case r.Answer == rules.AnswerUnavailable:
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.ProgramUnavailable))
	case c.rdma.Analysis.Session != 0: // it cannot be read to its end, or cut would have cut it
		f.answer(c, oncrpc.AppendAccepted(local, h.XID, oncrpc.GarbageArguments))
	default:
		f.answer(c, nfs.ReadOnlyReply(h))
	}
}

// needsVerifier reports whether a Reply to h needs a verifier that only the server can make. A Reply that denies
// has none.
func needsVerifier(h *oncrpc.Call) bool {
	return h.Flavor != oncrpc.FlavorNone && h.Flavor != oncrpc.FlavorSys && h.Flavor != oncrpc.FlavorShort
}

// cut removes from c the operation that r denies, and what follows it, if r answers with an error for
// read-only that only the server can give. c goes to the server then, as a Call that changes nothing.
func (f *front) cut(c *call, r *rules.Rule) bool {
	a, h := &c.rdma.Analysis, &c.h
	if r.Answer != rules.AnswerReadOnly || a.Session == 0 && !needsVerifier(h) {
		return false
	}
	s, ok := nfs.Cut(h)
	if !ok {
		return false
	}
	f.logDenied(c, r)
	operation, operations := a.Operation, a.Operations
	c.rdma.Message = h.Message
	c.rdma.Binding = f.listener.p.registry.Analyse(h, a)
	a.Operation, a.Operations = operation, operations // as the client has called it
	c.stump = s
	return true
}

// logDenied logs that r denies c.
func (f *front) logDenied(c *call, r *rules.Rule) {
	l := f.listener
	e := l.lines.denied.Line(&l.log, zerolog.WarnLevel, "call_denied").Str("rule", r.Name).Stringer("peer", f.peer).Uint32("xid", c.clientXID).
		Str("operation", c.operation()).Uint32("program", c.h.Program).Uint32("version", c.h.Version)
	if s, ok := c.h.Sys(); ok {
		e = e.Uint32("uid", s.UID())
	}
	e.Msg("a rule denies a call")
}

// uncut changes the Reply to c, which was cut: it says which operation was refused.
func (c *call) uncut(here int) error {
	if !c.stump.Uncut(c.reply.parts) {
		return nil
	}
	// Four octets more. An RDMA client needs them in memory of the arena.
	l, before := c.up.p.loop(here), c.reply.lease
	if err := c.setReply(l, c.reply.parts, 4); err != nil {
		return err
	}
	l.releaseReply(before)
	return nil
}
