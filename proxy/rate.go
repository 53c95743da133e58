package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Rate limits what comes in and what goes back. Zero values are no limit.
type Rate struct {
	Calls  int   // a second
	Octets int64 // of Calls and their Replies together, a second
}

func (r Rate) limited() bool { return r.Calls > 0 || r.Octets > 0 }

// A Weight is the share of clients whose address is in one of the prefixes.
type Weight struct {
	Clients []netip.Prefix
	Weight  int // from 1 on
}

const (
	// rateBurst is how long a rate that was not used may be used afterwards.
	rateBurst = 250 * time.Millisecond
	// rateTick is the time between two looks at those who wait for a bucket.
	rateTick = 10 * time.Millisecond
)

// A bucket holds the clients of a listener, or of one address, to a rate. It keeps the
// time until which what they had would have taken at their rate. When that lies
// ahead, whoever sends a Call is not read from until then: nothing is dropped, and
// nobody pays for more than the Call that was one too many. There is a timer for the
// bucket while somebody waits, none for a Call.
//
// It is safe for concurrent use.
type bucket struct {
	kind   gateKind
	rate   Rate
	atOnce int // Calls in rateTick
	held   *metrics.Counter
	clock  func() int64
	refs   int // connections; guarded by addressRates.mu

	mu    sync.Mutex // guards the rest; a leaf
	call  int64      // nanoseconds that a Call takes
	octet float64    // and an octet
	calls int64      // times, on the clock of the loops, until which they are paid for
	data  int64
	gate  gate
	timer bool // tick is due
}

func newBucket(kind gateKind, r Rate, held *metrics.Counter, clock func() int64) *bucket {
	b := &bucket{kind: kind, rate: r, held: held, clock: clock, atOnce: 1}
	if r.Calls > 0 {
		b.call = int64(time.Second) / int64(r.Calls)
		b.atOnce = max(1, int(int64(r.Calls)*int64(rateTick)/int64(time.Second)))
	}
	if r.Octets > 0 {
		b.octet = float64(time.Second) / float64(r.Octets)
	}
	return b
}

// spend pays for calls and octets at now. b.mu is held.
func (b *bucket) spend(now int64, calls, octets int) {
	least := now - int64(rateBurst)
	b.calls = max(b.calls, least) + int64(calls)*b.call
	b.data = max(b.data, least) + int64(float64(octets)*b.octet)
}

// due is when the next Call may come. b.mu is held.
func (b *bucket) due() int64 { return max(b.calls, b.data) }

// enter pays for a Call of n octets, and makes the client wait for what it owes.
func (b *bucket) enter(now int64, n int, g *ledger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spend(now, 1, n)
	if wait := b.due() - now; wait > 0 && g.wait(b.kind, &b.gate) {
		b.held.Inc()
		b.arm(wait)
	}
}

// leave pays for a Reply of n octets.
func (b *bucket) leave(now int64, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spend(now, 0, n)
}

// arm sees to it that tick comes. b.mu is held.
func (b *bucket) arm(wait int64) {
	if !b.timer {
		b.timer = true
		time.AfterFunc(max(time.Duration(wait), time.Millisecond), b.tick)
	}
}

// tick lets some in. Each can send one Call before it is looked at again.
func (b *bucket) tick() {
	now := b.clock()
	b.mu.Lock()
	b.timer = false
	var next *ticket
	wait := b.due() - now
	if wait <= 0 {
		next = b.gate.take(b.atOnce)
		wait = int64(rateTick)
	}
	if b.gate.n > 0 {
		b.arm(wait)
	}
	b.mu.Unlock()
	turn(next)
}

// end makes a rate that is not in force any more one that nobody waits for, those who
// do included. Whoever has the bucket still pays into nothing.
func (b *bucket) end() {
	b.mu.Lock()
	b.call, b.octet, b.calls, b.data = 0, 0, 0, 0
	next := b.gate.take(b.gate.n)
	b.mu.Unlock()
	turn(next)
}

// rates are the limits of one listener. They are constant: when one of them changes
// there are others, which have the bucket, or the buckets, of the limit that did not.
type rates struct {
	all  *bucket       // nil for no limit
	each *addressRates // nil for no limit
}

// addressRates are the limits of the addresses at one listener.
type addressRates struct {
	rate  Rate // constant, as are held and clock
	held  *metrics.Counter
	clock func() int64

	mu   sync.Mutex // guards the rest; taken before a bucket's
	each map[netip.Addr]*bucket
}

// keepBuckets is how many buckets there may be before those that nobody needs any
// more are looked for.
const keepBuckets = 64

// newRates are the limits that o has, after those of old: nil for none.
func newRates(m *metrics.Registry, o *ListenerOptions, old *rates, clock func() int64) *rates {
	if !o.Rate.limited() && !o.ClientRate.limited() {
		return nil
	}
	held := func(by string) *metrics.Counter {
		return m.Counter("client_rate_waits_total", "Times a client was not read from because of a rate.", "listener", o.Name, "rate", by)
	}
	r := &rates{}
	if old != nil {
		*r = *old
	}
	switch {
	case !o.Rate.limited():
		r.all = nil
	case r.all == nil || r.all.rate != o.Rate:
		r.all = newBucket(gateListener, o.Rate, held("listener"), clock)
	}
	switch {
	case !o.ClientRate.limited():
		r.each = nil
	case r.each == nil || r.each.rate != o.ClientRate:
		r.each = &addressRates{rate: o.ClientRate, held: held("client"), clock: clock, each: make(map[netip.Addr]*bucket)}
	}
	if old != nil && *r == *old {
		return old
	}
	return r
}

// end lets those go on who wait for a limit that next does not have. All connections
// have been told to follow next, or look at what is in force when they have joined.
func (r *rates) end(next *rates) {
	if r == nil || r == next {
		return
	}
	if next == nil {
		next = &rates{}
	}
	if r.all != nil && r.all != next.all {
		r.all.end()
	}
	if r.each != nil && r.each != next.each {
		r.each.end()
	}
}

func (r *addressRates) end() {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.each))
	r.mu.Unlock()
	for _, b := range all {
		b.end()
	}
}

// join gives a connection from a its buckets.
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

// join is the bucket of a, for another connection.
func (r *addressRates) join(a netip.Addr) *bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.each[a]
	if b == nil {
		if n := len(r.each); n >= keepBuckets && n&(n-1) == 0 {
			r.sweep()
		}
		b = newBucket(gateClient, r.rate, r.held, r.clock)
		r.each[a] = b
	}
	b.refs++
	return b
}

// leave undoes join. What an address owes it owes after its last connection as well.
func (r *addressRates) leave(b *bucket) {
	r.mu.Lock()
	b.refs--
	r.mu.Unlock()
}

// sweep forgets addresses without a connection or a debt. r.mu is held.
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
