package admit

import (
	"maps"
	"slices"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Rates are the limits of one listener, or of one tenant. They do not change: when one of the limits does,
// other rates take their place, with the same bucket, or buckets, for a limit that has
// not changed.
type Rates struct {
	all  *bucket       // nil for no limit
	each *addressRates // nil for no limit
}

// addressRates are the limits of the addresses at one listener, or in one tenant. What counts as an address is a
// crowd.Host, as everywhere: who has one address of an IPv6 /64 can have them all.
type addressRates struct {
	rate  Rate             // constant
	kind  Reason           // constant
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
	allKind, eachKind   Reason // of the gates where clients wait
	allWaits, eachWaits *metrics.Counter
}

// NewRates returns the limits of a listener, or nil if it has none. They replace old, which may be
// nil, and are old if no limit has changed.
func NewRates(m *metrics.Registry, listener string, all, each Rate, old *Rates, clock func() int64) *Rates {
	waits := func(by string) *metrics.Counter {
		return m.Counter(metrics.ListenerRateLimitWaits, listener, by)
	}
	return makeRates(rateLimits{
		all: all, each: each, allKind: gateListener, eachKind: gateClient,
		allWaits: waits("listener"), eachWaits: waits("client"),
	}, old, clock)
}

// makeRates does what newRates does, for the limits x.
func makeRates(x rateLimits, old *Rates, clock func() int64) *Rates {
	if !x.all.limited() && !x.each.limited() {
		return nil
	}
	r := &Rates{}
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
		r.each = &addressRates{
			rate: x.each, kind: x.eachKind, waits: x.eachWaits, clock: clock, each: make(map[crowd.Host]*bucket),
		}
	}
	if old != nil && *r == *old {
		return old
	}
	return r
}

// Replaced admits the clients that wait for a limit that next does not have. All
// connections have been told to follow next, or read the present rates after they have
// joined.
func (r *Rates) Replaced(next *Rates) {
	if r == nil || r == next {
		return
	}
	if next == nil {
		next = &Rates{}
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

// A rateLimited is what a client has at one set of Rates. It belongs to the client's loop.
type rateLimited struct {
	rates   *Rates    // nil for none
	buckets []*bucket // of rates, those that limit this client
}

// follow makes r, which may be nil, the limits of the client, which is one of h. Debts to a limit that has changed are
// forgotten; Rates.Replaced admits a client that waits for such a limit.
func (l *rateLimited) follow(r *Rates, h *Host) {
	if r != l.rates {
		l.rates.release(l.buckets)
		l.rates, l.buckets = r, r.obtain(l.buckets[:0], h.id)
	}
}

// limited reports whether a rate limits the client.
func (l *rateLimited) limited() bool { return len(l.buckets) > 0 }

// chargeCall charges a Call of n octets, and makes the client wait if the next Call may not come yet.
func (l *rateLimited) chargeCall(now int64, n int, c place) {
	for _, b := range l.buckets {
		b.chargeCall(now, n, c)
	}
}

// chargeReply charges a Reply of n octets.
func (l *rateLimited) chargeReply(now int64, n int) {
	for _, b := range l.buckets {
		b.chargeReply(now, n)
	}
}

// obtain appends the buckets of a client of the host h to list. The caller gives them to release.
func (r *Rates) obtain(list []*bucket, h crowd.Host) []*bucket {
	if r == nil {
		return list
	}
	if r.all != nil {
		list = append(list, r.all)
	}
	if r.each != nil {
		list = append(list, r.each.join(h))
	}
	return list
}

// release undoes obtain.
func (r *Rates) release(list []*bucket) {
	if r != nil && r.each != nil {
		r.each.leave(list[len(list)-1])
	}
}

// join returns the bucket of h and counts another connection.
func (r *addressRates) join(h crowd.Host) *bucket {
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
		idle := b.refs == 0 && b.wait(now) <= 0
		b.mu.Unlock()
		if idle {
			delete(r.each, h)
		}
	}
}
