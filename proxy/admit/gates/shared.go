package gates

import "github.com/rdmabridge/rdmabridge/metrics"

// A SharedRate is the limit of all Calls that a rule matches, whoever sends them. Addresses take turns at it. It is safe
// for concurrent use.
type SharedRate struct {
	rule   string  // constant, as the next
	bucket *bucket // in a Limit of its own
}

// Waiting is about how many clients wait because of the rate.
func (s *SharedRate) Waiting() int {
	s.bucket.mu.Lock()
	defer s.bucket.mu.Unlock()
	return s.bucket.gate.Waiting()
}

// ChargeCall charges a Call of n octets of w, and makes w wait if its next Call may not come yet. It does nothing once
// other Rates are in force that do not have s.
func (s *SharedRate) ChargeCall(now int64, n int, w *Waiter) { s.bucket.chargeCall(now, n, w) }

// ChargeReply charges a Reply of n octets.
func (s *SharedRate) ChargeReply(now int64, n int) { s.bucket.chargeReply(now, n) }

// Rule returns the limit of the rule with this index, or nil.
func (r *Rates) Rule(index int) *SharedRate {
	if r == nil || index >= len(r.rules) {
		return nil
	}
	return r.rules[index]
}

// ruleRates returns the limits of rules: those of r that are the same, and new ones. It returns nil if no rule has one.
func (r *Rates) ruleRates(rules []RuleRate, waits *metrics.Counter, clock func() int64) (all []*SharedRate) {
	for i, x := range rules {
		l := NewLimit(GateRule, x.Rate, waits, clock)
		if l == nil {
			continue
		}
		if all == nil {
			all = make([]*SharedRate, len(rules))
		}
		if all[i] = r.sameRule(x); all[i] == nil {
			all[i] = &SharedRate{x.Rule, l.join(allHosts)}
		}
	}
	return all
}

// sameRule returns the limit of r that is x, or nil.
func (r *Rates) sameRule(x RuleRate) *SharedRate {
	if r == nil {
		return nil
	}
	for _, s := range r.rules {
		if s != nil && s.rule == x.Rule && s.bucket.limit.rate == x.Rate {
			return s
		}
	}
	return nil
}
