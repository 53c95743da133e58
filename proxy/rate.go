package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Rate limits the Calls of clients. Zero values are no limit.
type Rate struct {
	Calls  int   // in a second
	Octets int64 // of Calls and their Replies together, in a second
}

// limited reports whether r is a limit.
func (r Rate) limited() bool { return r.Calls > 0 || r.Octets > 0 }

// A Weight is the share of clients whose address is in one of the prefixes.
type Weight struct {
	Clients []netip.Prefix
	Weight  int // from 1 on
}

// rates are the limits of one listener. They do not change: when one of the limits does,
// other rates take their place, with the same bucket, or buckets, for a limit that has
// not changed.
type rates struct {
	all  *bucket       // nil for no limit
	each *addressRates // nil for no limit
}

// addressRates are the limits of the addresses at one listener.
type addressRates struct {
	rate  Rate             // constant
	waits *metrics.Counter // constant
	clock func() int64     // constant

	mu   sync.Mutex // guards the rest; locked before the mutex of a bucket
	each map[netip.Addr]*bucket
}

// sweepBuckets is the number of buckets from which on addressRates looks for buckets that
// no client needs any more.
const sweepBuckets = 64

// newRates returns the limits of o, or nil if it has none. They replace old, which may be
// nil, and are old if no limit has changed.
func newRates(m *metrics.Registry, o *ListenerOptions, old *rates, clock func() int64) *rates {
	if !o.Rate.limited() && !o.ClientRate.limited() {
		return nil
	}
	waits := func(by string) *metrics.Counter {
		return m.Counter(metrics.ListenerRateLimitWaits, o.Name, by)
	}
	r := &rates{}
	if old != nil {
		*r = *old
	}
	switch {
	case !o.Rate.limited():
		r.all = nil
	case r.all == nil || r.all.rate != o.Rate:
		r.all = newBucket(gateListener, o.Rate, waits("listener"), clock)
	}
	switch {
	case !o.ClientRate.limited():
		r.each = nil
	case r.each == nil || r.each.rate != o.ClientRate:
		r.each = &addressRates{rate: o.ClientRate, waits: waits("client"), clock: clock, each: make(map[netip.Addr]*bucket)}
	}
	if old != nil && *r == *old {
		return old
	}
	return r
}

// replaced admits the clients that wait for a limit that next does not have. All
// connections have been told to follow next, or read the present rates after they have
// joined.
func (r *rates) replaced(next *rates) {
	if r == nil || r == next {
		return
	}
	if next == nil {
		next = &rates{}
	}
	if r.all != nil && r.all != next.all {
		r.all.lift()
	}
	if r.each != nil && r.each != next.each {
		r.each.lift()
	}
}

// lift lifts the limits of all addresses.
func (r *addressRates) lift() {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.each))
	r.mu.Unlock()
	for _, b := range all {
		b.lift()
	}
}

// join gives the client with the ledger g, from address a, its buckets.
func (r *rates) join(a netip.Addr, g *ledger) {
	g.rates = r
	if r == nil {
		return
	}
	if r.all != nil {
		g.buckets = append(g.buckets, r.all)
	}
	if r.each != nil {
		g.buckets = append(g.buckets, r.each.join(a))
	}
}

// leave undoes join.
func (r *rates) leave(g *ledger) {
	if r != nil && r.each != nil {
		r.each.leave(g.buckets[len(g.buckets)-1])
	}
	g.rates, g.buckets = nil, g.buckets[:0]
}

// join returns the bucket of a and counts another connection.
func (r *addressRates) join(a netip.Addr) *bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.each[a]
	if b == nil {
		if n := len(r.each); n >= sweepBuckets && n&(n-1) == 0 {
			r.sweep()
		}
		b = newBucket(gateClient, r.rate, r.waits, r.clock)
		r.each[a] = b
	}
	b.refs++
	return b
}

// leave undoes join. An address still owes what it owes when its last connection has
// ended.
func (r *addressRates) leave(b *bucket) {
	r.mu.Lock()
	b.refs--
	r.mu.Unlock()
}

// sweep removes the buckets of addresses that have no connection and owe nothing. r.mu is
// held.
func (r *addressRates) sweep() {
	now := r.clock()
	for a, b := range r.each {
		b.mu.Lock()
		idle := b.refs == 0 && b.due() <= now
		b.mu.Unlock()
		if idle {
			delete(r.each, a)
		}
	}
}
