package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rules"
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A policy is what a listener does to Calls before it routes them: its rules, and which
// users it maps. It is constant once it is in force. A listener without any of it has no policy, and its Calls
// cost one comparison with nil.
type policy struct {
	squash  Squash             // its Mode is for Calls that no rule matches
	rules   *rules.Set         // of none or more
	effects []ruleEffect       // of the rules, by their index, without counters; each loop has a copy with its own
	counted []*metrics.Counter // of all loops, by the rules' index
	on      []loopPolicy       // by the index of the loop
}

// A loopPolicy is what a loop has of a policy. It belongs to the loop once the policy is in force.
type loopPolicy struct {
	judge    *rules.Judge     // nil before the loop's first Call
	effects  []ruleEffect     // of the rules, by their index
	other    ruleEffect       // of Calls that no rule matches; it counts none
	squashed *metrics.Counter // Calls whose user was mapped
}

// A ruleEffect is what becomes of the Calls that a rule decides about, in one place for the loop. Its fields calls
// and latest are of all Calls that the rule matches.
type ruleEffect struct {
	calls    *metrics.Counter // that the rule has matched
	latest   int64            // when it has matched the latest, on the clock of the loops; 0 if none
	rule     *rules.Rule      // nil: none
	denies   *rules.Rule      // nil: it does not deny
	upstream *upstream        // nil: the routes decide
	squash   rules.Squash
}

// newPolicy makes the policy of o, or returns nil if it has none. find returns an upstream by its name.
func (l *listener) newPolicy(o *ListenerOptions, find func(string) (*upstream, error)) (*policy, error) {
	p := &policy{squash: o.Squash}
	if p.squash.Mode == rules.SquashDefault {
		p.squash.Mode = rules.SquashOff
	}
	if len(o.Rules) == 0 && p.squash.Mode == rules.SquashOff {
		return nil, nil
	}
	var err error
	if p.rules, err = rules.Compile(o.Rules); err != nil {
		return nil, fmt.Errorf("proxy: listener %q: %w", o.Name, err)
	}
	for i := range p.rules.Rules() {
		r := &p.rules.Rules()[i]
		e := ruleEffect{rule: r, squash: r.Squash}
		if e.squash == rules.SquashDefault {
			e.squash = p.squash.Mode
		}
		switch r.Action {
		case rules.Deny:
			e.denies = r
		case rules.Route:
			if e.upstream, err = find(r.Upstream); err != nil {
				return nil, err
			}
		}
		p.effects = append(p.effects, e)
	}
	return p, nil
}

// describe registers the counters of p, which may be nil. It is called before p comes into force.
func (p *policy) describe(l *listener) {
	if p == nil {
		return
	}
	count := func(m *metrics.Registry, r *rules.Rule) *metrics.Counter {
		return m.Counter(metrics.ListenerRuleCalls, l.name, r.Name, verdictOf(r))
	}
	for i := range p.effects {
		p.counted = append(p.counted, count(l.p.metrics, p.effects[i].rule))
	}
	for _, on := range l.p.loops {
		x := loopPolicy{
			effects: slices.Clone(p.effects), other: ruleEffect{squash: p.squash.Mode},
			squashed: on.metrics.Counter(metrics.ListenerSquashedCalls, l.name),
		}
		for i := range x.effects {
			x.effects[i].calls = count(on.metrics, x.effects[i].rule)
		}
		p.on = append(p.on, x)
	}
}

// verdictOf is the label of a rule's counter.
func verdictOf(r *rules.Rule) string {
	switch {
	case r.DryRun:
		return "dry_run"
	case r.Action == rules.Deny:
		return "deny"
	case r.Action == rules.Route:
		return "upstream"
	}
	return "allow"
}

// status describes the rules of l. found is what the loops have said.
func (p *policy) status(l *listener, found []*collector, wall time.Time) (all []status.Rule) {
	if p == nil {
		return nil
	}
	for i := range p.rules.Rules() {
		r := &p.rules.Rules()[i]
		d := status.Rule{Name: r.Name, Verdict: verdictOf(r), Effect: r.Effect(), Calls: p.counted[i].Value()}
		for _, c := range found {
			if m := c.matched[l]; m.policy == p && m.latest[i] != 0 {
				if at := wall.Add(-time.Duration(max(0, c.now-m.latest[i]))); d.Latest == nil || at.After(*d.Latest) {
					d.Latest = &at
				}
			}
		}
		all = append(all, d)
	}
	return all
}

// A matchReport says when the rules of a policy have matched a Call of a loop last, by the rules' index.
type matchReport struct {
	policy *policy
	latest []int64
}

// report is called on the loop with this index.
func (p *policy) report(loop int) (m matchReport) {
	m.policy = p
	if p != nil {
		for i := range p.on[loop].effects {
			m.latest = append(m.latest, p.on[loop].effects[i].latest)
		}
	}
	return m
}

// all returns the upstreams of p, which may be nil.
func (p *policy) all() (us []*upstream) {
	if p == nil {
		return nil
	}
	for i := range p.effects {
		if u := p.effects[i].upstream; u != nil {
			us = append(us, u)
		}
	}
	return us
}

// forgetRules ends the series of the rules of old, which may be nil, that p does not have.
func (p *policy) forgetRules(m *metrics.Registry, listener string, old *policy) {
	if old == nil {
		return
	}
	kept := make(map[[2]string]bool)
	if p != nil {
		for i := range p.rules.Rules() {
			r := &p.rules.Rules()[i]
			kept[[2]string{r.Name, verdictOf(r)}] = true
		}
	}
	for i := range old.rules.Rules() {
		r := &old.rules.Rules()[i]
		if v := verdictOf(r); !kept[[2]string{r.Name, v}] {
			m.Forget("listener", listener, "rule", r.Name, "verdict", v)
		}
	}
}

// bind finds the rules of p that can match the Calls of f. on is p's part of the loop.
func (f *front) bind(p *policy, on *loopPolicy) {
	c := rules.Client{Address: f.ledger.addr(), Port: f.peer.Port(), Identity: f.identity}
	if via := f.client.proxy(); via != (netip.AddrPort{}) {
		c.Proxy = via.Addr()
	}
	if on.judge == nil {
		on.judge = rules.NewJudge(p.rules)
	}
	f.latest.bind(p, on.judge.Bind(&c))
}
