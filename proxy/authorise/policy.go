package authorise

import (
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Policy is what a listener does to Calls before it routes them: its rules, and which
// users it maps. It is constant once it is in force. A listener without any of it has no policy, and its Calls
// cost one comparison with nil. The methods are for a nil Policy, too, which has no rules.
type Policy struct {
	exports *nfs.Exports       // that rules ask for; nil: none does
	squash  Squash             // its Mode is for Calls that no rule matches
	rules   *rules.Set         // of none or more
	effects []effect           // of the rules, by their index, without counters; each loop has a copy with its own
	counted []*metrics.Counter // of all loops, by the rules' index
	on      []loopPolicy       // by the index of the loop
}

// A loopPolicy is what a loop has of a policy. It belongs to the loop once the policy is in force.
type loopPolicy struct {
	judge    *rules.Judge     // nil before the loop's first Call
	effects  []effect         // of the rules, by their index
	other    effect           // of Calls that no rule matches; it counts none
	squashed *metrics.Counter // Calls whose user was mapped
}

// An effect is what becomes of the Calls that a rule decides about, in one place for the loop. Its fields calls
// and latest are of all Calls that the rule matches.
type effect struct {
	calls  *metrics.Counter // that the rule has matched
	latest int64            // when it has matched the latest, on the clock of the loops; 0 if none
	rule   *rules.Rule      // nil: none
	squash rules.Squash
}

// New makes a policy of rules and s, or returns nil if there is nothing of either. exports has the exports that rules
// ask for, and is nil if none does.
func New(all []rules.Rule, s Squash, exports *nfs.Exports) (*Policy, error) {
	p := &Policy{squash: s, exports: exports}
	if p.squash.Mode == rules.SquashDefault {
		p.squash.Mode = rules.SquashOff
	}
	if len(all) == 0 && p.squash.Mode == rules.SquashOff {
		return nil, nil
	}
	var err error
	if p.rules, err = rules.Compile(all); err != nil {
		return nil, err
	}
	for i := range p.rules.Rules() {
		r := &p.rules.Rules()[i]
		e := effect{rule: r, squash: r.Squash}
		if e.squash == rules.SquashDefault {
			e.squash = p.squash.Mode
		}
		p.effects = append(p.effects, e)
	}
	return p, nil
}

// Rules returns the rules, by the index that a Decision names.
func (p *Policy) Rules() []rules.Rule {
	if p == nil {
		return nil
	}
	return p.rules.Rules()
}

// Describe registers the counters of p for the listener with this name: those of all loops together in m, and those of
// each loop in loops. It is called before p comes into force.
func (p *Policy) Describe(listener string, m *metrics.Registry, loops []*metrics.Registry) {
	if p == nil {
		return
	}
	count := func(m *metrics.Registry, r *rules.Rule) *metrics.Counter {
		return m.Counter(metrics.ListenerRuleCalls, listener, r.Name, verdictOf(r))
	}
	for i := range p.effects {
		p.counted = append(p.counted, count(m, p.effects[i].rule))
	}
	for _, on := range loops {
		x := loopPolicy{
			effects: slices.Clone(p.effects), other: effect{squash: p.squash.Mode},
			squashed: on.Counter(metrics.ListenerSquashedCalls, listener),
		}
		for i := range x.effects {
			x.effects[i].calls = count(on, x.effects[i].rule)
		}
		p.on = append(p.on, x)
	}
}

// ForgetSeries ends the series of the rules of old, which p replaces and which may be nil, that p does not have.
func (p *Policy) ForgetSeries(m *metrics.Registry, listener string, old *Policy) {
	kept := make(map[[2]string]bool)
	all := p.Rules()
	for i := range all {
		kept[[2]string{all[i].Name, verdictOf(&all[i])}] = true
	}
	all = old.Rules()
	for i := range all {
		if v := verdictOf(&all[i]); !kept[[2]string{all[i].Name, v}] {
			m.Forget("listener", listener, "rule", all[i].Name, "verdict", v)
		}
	}
}

// verdictOf is the label of a rule's counter.
func verdictOf(r *rules.Rule) string {
	switch {
	case r.DryRun:
		return "dry_run"
	case r.Action == rules.Deny:
		return "deny"
	case r.Action == rules.Limit:
		return "limit"
	case r.Action == rules.Route:
		return "upstream"
	}
	return "allow"
}

// A Report says when the rules of a policy have matched a Call of a loop last, by the rules' index.
type Report struct {
	policy *Policy
	latest []int64
	now    int64
}

// Report is called on the loop with this index, at the time now of its clock.
func (p *Policy) Report(loop int, now int64) Report {
	r := Report{policy: p, now: now}
	if p != nil {
		for i := range p.on[loop].effects {
			r.latest = append(r.latest, p.on[loop].effects[i].latest)
		}
	}
	return r
}

// Status describes the rules of p. reports are what the loops have said, and wall is the time now.
func (p *Policy) Status(reports []Report, wall time.Time) (all []status.Rule) {
	for i := range p.Rules() {
		r := &p.rules.Rules()[i]
		d := status.Rule{Name: r.Name, Verdict: verdictOf(r), Effect: r.Effect(), Calls: p.counted[i].Value()}
		for _, c := range reports {
			if c.policy == p && c.latest[i] != 0 {
				if at := wall.Add(-time.Duration(max(0, c.now-c.latest[i]))); d.Latest == nil || at.After(*d.Latest) {
					d.Latest = &at
				}
			}
		}
		all = append(all, d)
	}
	return all
}

// facts returns the facts of the Call h that rules ask for.
func (p *Policy) facts(h *oncrpc.Call, changes bool) rules.Facts {
	x := rules.Facts{Changes: changes}
	if p.exports != nil {
		x.Touched = rules.Touched(p.exports.Touched(h, changes))
	}
	return x
}

// effect returns the effect of rule, which is -1 for none.
func (on *loopPolicy) effect(rule int) *effect {
	if rule >= 0 {
		return &on.effects[rule]
	}
	return &on.other
}

// denies reports whether Calls are denied.
func (e *effect) denies() bool { return e.rule != nil && e.rule.Action == rules.Deny }

// routes reports whether the rule says to which upstream Calls go.
func (e *effect) routes() bool { return e.rule != nil && e.rule.Action == rules.Route }

// limits reports whether the rule limits the rate of Calls.
func (e *effect) limits() bool { return e.rule.Action == rules.Limit && !e.rule.DryRun }

// passes reports whether a Call goes on as if there were no rule.
func (e *effect) passes() bool {
	return !e.denies() && !e.routes() && e.squash == rules.SquashOff
}

// count counts a Call that the rule has matched and that was read at now.
func (e *effect) count(now int64) {
	e.calls.Inc()
	e.latest = now
}
