package gates

import (
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Rates are the limits of one listener, or of one tenant: of all its clients together, of each address, and of what rules
// of the listener match. They do not change: when one of the limits does, other Rates take their place, with the same Limit
// for one that has not changed.
type Rates struct {
	all, each *Limit        // nil for no limit
	rules     []*SharedRate // by the index of the rule, nil for no limit; none if no rule has one
}

// A RuleRate is the Rate of a rule. The names of the rules of a listener differ.
type RuleRate struct {
	Rule string
	Rate Rate
}

// NewRates returns the limits of a listener, or nil if it has none. rules are those of all its rules. The limits replace
// old, which may be nil, and are old if none has changed.
func NewRates(m *metrics.Registry, listener string, all, each Rate, rules []RuleRate, old *Rates, clock func() int64) *Rates {
	waits := func(limit string) *metrics.Counter { return m.Counter(metrics.ListenerRateLimitWaits, listener, limit) }
	return old.changed(Rates{
		all:   NewLimit(GateListener, all, waits("listener"), clock),
		each:  NewLimit(GateClient, each, waits("client"), clock),
		rules: old.ruleRates(rules, waits("rule"), clock),
	})
}

// Changed returns the Rates that replace r when all and each are the limits, which are nil for none.
func (r *Rates) Changed(all, each *Limit) *Rates { return r.changed(Rates{all: all, each: each}) }

func (r *Rates) changed(next Rates) *Rates {
	if next.all == nil && next.each == nil && next.rules == nil {
		return nil
	}
	if r == nil {
		return &next
	}
	next.all, next.each = r.all.changed(next.all), r.each.changed(next.each)
	if next.all == r.all && next.each == r.each && slices.Equal(next.rules, r.rules) {
		return r
	}
	return &next
}

// Replaced admits the clients that wait for a limit that next does not have. All
// connections have been told to follow next, or read the present rates after they have
// joined.
func (r *Rates) Replaced(next *Rates) {
	if r == nil {
		return
	}
	if next == nil {
		next = &Rates{}
	}
	if r.all != next.all {
		r.all.lift()
	}
	if r.each != next.each {
		r.each.lift()
	}
	for _, s := range r.rules {
		if s != nil && !slices.Contains(next.rules, s) {
			s.bucket.lift()
		}
	}
}

// A Limited is what a client has at one set of Rates. It belongs to the client's loop.
type Limited struct {
	rates   *Rates    // nil for none
	buckets []*bucket // of rates, those that limit this client
}

// Any reports whether a rate limits the client.
func (l *Limited) Any() bool { return l.rates != nil }

// Follow makes r, which may be nil, the limits of the client, which is one of h. Debts to a limit that has changed are
// forgotten; Rates.Replaced admits a client that waits for such a limit.
func (l *Limited) Follow(r *Rates, h crowd.Host) {
	if r == l.rates {
		return
	}
	for _, b := range l.buckets {
		b.leave()
	}
	l.rates, l.buckets = r, r.join(h)
}

// ChargeCall charges a Call of n octets of w, and makes w wait if the next Call may not come yet.
func (l *Limited) ChargeCall(now int64, n int, w *Waiter) {
	for _, b := range l.buckets {
		b.chargeCall(now, n, w)
	}
}

// ChargeReply charges a Reply of n octets.
func (l *Limited) ChargeReply(now int64, n int) {
	for _, b := range l.buckets {
		b.chargeReply(now, n)
	}
}

// join returns the buckets of another client of the host h.
func (r *Rates) join(h crowd.Host) (list []*bucket) {
	if r == nil {
		return nil
	}
	if r.all != nil {
		list = append(list, r.all.join(allHosts))
	}
	if r.each != nil {
		list = append(list, r.each.join(h))
	}
	return list
}
