package gates

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

const (
	// rateBurst is how long a silent listener or address saves up its rate: after that it may
	// send as much at once as it might have sent in rateBurst.
	rateBurst = 250 * time.Millisecond
	// rateTick is the time between two looks at the clients that wait for a bucket.
	rateTick = 10 * time.Millisecond
)

// A Rate limits the Calls of clients. Zero values are no limit.
type Rate struct {
	Calls  int   // in a second
	Octets int64 // of Calls and their Replies together, in a second
}

// A Limit is a Rate with a bucket for each address, or with one for all. What counts as an address is a crowd.Host,
// as everywhere: who has one address of an IPv6 /64 can have them all.
type Limit struct {
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

// sweepBuckets is the number of buckets from which on a Limit looks for buckets that no client needs any more.
const sweepBuckets = 64

// NewLimit returns the limit of r, or nil if r is none.
func NewLimit(kind Reason, r Rate, waits *metrics.Counter, clock func() int64) *Limit {
	if r == (Rate{}) {
		return nil
	}
	l := &Limit{rate: r, kind: kind, waits: waits, clock: clock, atOnce: 1, buckets: make(map[crowd.Host]*bucket)}
	if r.Calls > 0 {
		l.perCall = int64(time.Second) / int64(r.Calls)
		l.atOnce = max(1, int(int64(r.Calls)*int64(rateTick)/int64(time.Second)))
	}
	if r.Octets > 0 {
		l.perOctet = float64(time.Second) / float64(r.Octets)
	}
	return l
}

// changed returns l if next is the same limit, and otherwise next.
func (l *Limit) changed(next *Limit) *Limit {
	if l != nil && next != nil && l.rate == next.rate {
		return l
	}
	return next
}

// lift ends the limit for all.
func (l *Limit) lift() {
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

// join returns the bucket of h and counts another connection.
func (l *Limit) join(h crowd.Host) *bucket {
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
func (l *Limit) sweep() {
	now := l.clock()
	maps.DeleteFunc(l.buckets, func(_ crowd.Host, b *bucket) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.refs == 0 && b.wait(now) <= 0
	})
}

// A bucket limits the rate of the clients of a listener or tenant, or of one address. While its Calls or octets are
// ahead of their rates, the bridge stops reading from a client that sends another Call. It drops nothing, and a client
// sends at most one Call too many. A bucket needs a timer while a client waits, and none for a Call.
//
// It is safe for concurrent use.
type bucket struct {
	limit *Limit // constant
	refs  int    // connections; guarded by limit.mu

	mu     sync.Mutex      // guards the rest; a leaf
	calls  ratelimit.Meter // on the clock of the loops, as the next
	octets ratelimit.Meter
	gate   Gate
	timer  bool // tick is due
	lifted bool // the limit is not in force any more
}

// leave ends the count of a connection. An address still owes what it owes when its last connection has ended.
func (b *bucket) leave() {
	b.limit.mu.Lock()
	b.refs--
	b.limit.mu.Unlock()
}

// charge adds calls and octets at now. b.mu is held.
func (b *bucket) charge(now int64, calls, octets int) {
	if b.lifted {
		return
	}
	b.calls.Charge(now, int64(calls)*b.limit.perCall, int64(rateBurst))
	b.octets.Charge(now, int64(float64(octets)*b.limit.perOctet), int64(rateBurst))
}

// wait returns how long it takes until the next Call may come. b.mu is held.
func (b *bucket) wait(now int64) int64 {
	return max(b.calls.Wait(now, 0, int64(rateBurst)), b.octets.Wait(now, 0, int64(rateBurst)))
}

// chargeCall charges a Call of n octets of w, and makes w wait if the next Call may not come yet.
func (b *bucket) chargeCall(now int64, n int, w *Waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(now, 1, n)
	if wait := b.wait(now); wait > 0 && w.WaitAt(b.limit.kind, &b.gate) != nil {
		b.limit.waits.Inc()
		b.arm(wait)
	}
}

// chargeReply charges a Reply of n octets.
func (b *bucket) chargeReply(now int64, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(now, 0, n)
}

// arm starts the timer of tick if it does not run. b.mu is held.
func (b *bucket) arm(wait int64) {
	if !b.timer {
		b.timer = true
		time.AfterFunc(max(time.Duration(wait), time.Millisecond), b.tick)
	}
}

// tick admits as many clients as there may be Calls until the next tick. Each of them can
// send one Call before it has to wait again.
func (b *bucket) tick() {
	now := b.limit.clock()
	b.mu.Lock()
	b.timer = false
	var next *Ticket
	wait := b.wait(now)
	if wait <= 0 {
		next = b.gate.Remove(b.limit.atOnce)
		wait = int64(rateTick)
	}
	if b.gate.n > 0 {
		b.arm(wait)
	}
	b.mu.Unlock()
	RunAll(next)
}

// lift admits the clients that wait, because the limit is not in force any more. Clients that still have the bucket are
// charged nothing.
func (b *bucket) lift() {
	b.mu.Lock()
	b.lifted, b.calls, b.octets = true, ratelimit.Meter{}, ratelimit.Meter{}
	next := b.gate.Remove(b.gate.n)
	b.mu.Unlock()
	RunAll(next)
}
