package admit

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Rate limits the Calls of clients. Zero values are no limit.
type Rate struct {
	Calls  int   // in a second
	Octets int64 // of Calls and their Replies together, in a second
}

// Rates are the limits of one listener, or of one tenant: of all its clients together, and of each address. They do not
// change: when one of the limits does, other Rates take their place, with the same rateLimit for one that has not
// changed.
type Rates struct{ all, each *rateLimit } // nil for no limit

// A rateLimit is a Rate with a bucket for each address, or with one for all. What counts as an address is a crowd.Host,
// as everywhere: who has one address of an IPv6 /64 can have them all.
type rateLimit struct {
	rate     Rate             // constant, as the next six
	kind     Reason           // of the gates where clients wait
	waits    *metrics.Counter // times that clients began to wait
	clock    func() int64     // of the loops
	perCall  int64            // nanoseconds that a Call takes
	perOctet float64          // nanoseconds that an octet takes
	atOnce   int              // Calls in rateTick

	mu      sync.Mutex // guards the rest; locked before the mutex of a bucket
	buckets map[crowd.Host]*bucket
}

// allHosts is where the bucket for all addresses is.
const allHosts crowd.Host = 0

// sweepBuckets is the number of buckets from which on a rateLimit looks for buckets that no client needs any more.
const sweepBuckets = 64

// newRateLimit returns the limit of r, or nil if r is none.
func newRateLimit(kind Reason, r Rate, waits *metrics.Counter, clock func() int64) *rateLimit {
	if r == (Rate{}) {
		return nil
	}
	l := &rateLimit{rate: r, kind: kind, waits: waits, clock: clock, atOnce: 1, buckets: make(map[crowd.Host]*bucket)}
	if r.Calls > 0 {
		l.perCall = int64(time.Second) / int64(r.Calls)
		l.atOnce = max(1, int(int64(r.Calls)*int64(rateTick)/int64(time.Second)))
	}
	if r.Octets > 0 {
		l.perOctet = float64(time.Second) / float64(r.Octets)
	}
	return l
}

// NewRates returns the limits of a listener, or nil if it has none. They replace old, which may be
// nil, and are old if no limit has changed.
func NewRates(m *metrics.Registry, listener string, all, each Rate, old *Rates, clock func() int64) *Rates {
	return old.changed(
		newRateLimit(gateListener, all, m.Counter(metrics.ListenerRateLimitWaits, listener, "listener"), clock),
		newRateLimit(gateClient, each, m.Counter(metrics.ListenerRateLimitWaits, listener, "client"), clock),
	)
}

// changed returns the Rates that replace r when all and each are the limits, which are nil for none.
func (r *Rates) changed(all, each *rateLimit) *Rates {
	if all == nil && each == nil {
		return nil
	}
	if r == nil {
		return &Rates{all, each}
	}
	if next := (Rates{r.all.changed(all), r.each.changed(each)}); next != *r {
		return &next
	}
	return r
}

// changed returns l if next is the same limit, and otherwise next.
func (l *rateLimit) changed(next *rateLimit) *rateLimit {
	if l != nil && next != nil && l.rate == next.rate {
		return l
	}
	return next
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
}

// lift ends the limit for all.
func (l *rateLimit) lift() {
	if l == nil {
		return
	}
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.buckets))
	l.mu.Unlock()
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
	if r == l.rates {
		return
	}
	for _, b := range l.buckets {
		b.leave()
	}
	l.rates, l.buckets = r, r.join(h.id)
}

// chargeCall charges a Call of n octets of g, and makes g wait if the next Call may not come yet.
func (l *rateLimited) chargeCall(now int64, n int, g *Client) {
	for _, b := range l.buckets {
		b.chargeCall(now, n, g)
	}
}

// chargeReply charges a Reply of n octets.
func (l *rateLimited) chargeReply(now int64, n int) {
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

// join returns the bucket of h and counts another connection.
func (l *rateLimit) join(h crowd.Host) *bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[h]
	if b == nil {
		if n := len(l.buckets); n >= sweepBuckets && n&(n-1) == 0 {
			l.sweep()
		}
		b = &bucket{limit: l}
		l.buckets[h] = b
	}
	b.refs++
	return b
}

// sweep removes the buckets of addresses that have no connection and owe nothing. l.mu is held.
func (l *rateLimit) sweep() {
	now := l.clock()
	maps.DeleteFunc(l.buckets, func(_ crowd.Host, b *bucket) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.refs == 0 && b.wait(now) <= 0
	})
}
