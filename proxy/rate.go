package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
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

// rates are the limits of one listener, or of one tenant. They do not change: when one of the limits does,
// other rates take their place, with the same bucket, or buckets, for a limit that has
// not changed.
type rates struct {
	all  *bucket       // nil for no limit
	each *addressRates // nil for no limit
}

// addressRates are the limits of the addresses at one listener, or in one tenant. What counts as an address is a
// crowd.Host, as everywhere: who has one address of an IPv6 /64 can have them all.
type addressRates struct {
	rate  Rate             // constant
	kind  gateKind         // constant
	waits *metrics.Counter // constant
	clock func() int64     // constant

	mu   sync.Mutex // guards the rest; locked before the mutex of a bucket
	each map[crowd.Host]*bucket
}

// sweepBuckets is the number of buckets from which on addressRates looks for buckets that
// no client needs any more.
const sweepBuckets = 64

// rateLimits are the limits of a listener or of a tenant: of all its clients together, and of each address.
type rateLimits struct {
	all, each           Rate
	allKind, eachKind   gateKind // of the gates where clients wait
	allWaits, eachWaits *metrics.Counter
}

// newRates returns the limits of o, or nil if it has none. They replace old, which may be
// nil, and are old if no limit has changed.
func newRates(m *metrics.Registry, o *ListenerOptions, old *rates, clock func() int64) *rates {
	waits := func(by string) *metrics.Counter {
		return m.Counter(metrics.ListenerRateLimitWaits, o.Name, by)
	}
	return makeRates(rateLimits{
		all: o.Rate, each: o.ClientRate, allKind: gateListener, eachKind: gateClient,
		allWaits: waits("listener"), eachWaits: waits("client"),
	}, old, clock)
}

// makeRates does what newRates does, for the limits x.
func makeRates(x rateLimits, old *rates, clock func() int64) *rates {
	if !x.all.limited() && !x.each.limited() {
		return nil
	}
	r := &rates{}
	if old != nil {
		*r = *old
	}
	switch {
	case !x.all.limited():
		r.all = nil
	case r.all == nil || r.all.rate != x.all:
		r.all = newBucket(x.allKind, x.all, x.allWaits, clock)
	}
	switch {
	case !x.each.limited():
		r.each = nil
	case r.each == nil || r.each.rate != x.each:
		r.each = &addressRates{rate: x.each, kind: x.eachKind, waits: x.eachWaits, clock: clock, each: make(map[crowd.Host]*bucket)}
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

// join gives the client with the ledger g, from address a, its buckets of its listener.
func (r *rates) join(a netip.Addr, g *ledger) {
	g.rates, g.buckets = r, r.obtain(g.buckets[:0], a)
}

// leave undoes join.
func (r *rates) leave(g *ledger) {
	r.release(g.buckets)
	g.rates, g.buckets = nil, g.buckets[:0]
}

// obtain appends the buckets of a client from address a to list. The caller gives them to release.
func (r *rates) obtain(list []*bucket, a netip.Addr) []*bucket {
	if r == nil {
		return list
	}
	if r.all != nil {
		list = append(list, r.all)
	}
	if r.each != nil {
		list = append(list, r.each.join(a))
	}
	return list
}

// release undoes obtain.
func (r *rates) release(list []*bucket) {
	if r != nil && r.each != nil {
		r.each.leave(list[len(list)-1])
	}
}

// join returns the bucket of a and counts another connection.
func (r *addressRates) join(a netip.Addr) *bucket {
	h := crowd.HostOf(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.each[h]
	if b == nil {
		if n := len(r.each); n >= sweepBuckets && n&(n-1) == 0 {
			r.sweep()
		}
		b = newBucket(r.kind, r.rate, r.waits, r.clock)
		r.each[h] = b
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
	for h, b := range r.each {
		b.mu.Lock()
		idle := b.refs == 0 && b.due() <= now
		b.mu.Unlock()
		if idle {
			delete(r.each, h)
		}
	}
}
