package admit

import (
	"sync"
	"time"

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

// limited reports whether r is a limit.
func (r Rate) limited() bool { return r.Calls > 0 || r.Octets > 0 }

// A bucket limits the rate of the clients of a listener, or of one address. While its Calls or
// octets are ahead of their rates, the bridge stops reading from a client
// that sends another Call. It drops nothing, and a client sends at most one Call too
// many. A bucket needs a timer while a client waits, and none for a Call.
//
// It is safe for concurrent use.
type bucket struct {
	kind   Reason           // constant
	rate   Rate             // constant
	atOnce int              // Calls in rateTick; constant
	waits  *metrics.Counter // constant
	clock  func() int64     // constant
	refs   int              // connections; guarded by addressRates.mu

	mu       sync.Mutex      // guards the rest; a leaf
	perCall  int64           // nanoseconds that a Call takes
	perOctet float64         // nanoseconds that an octet takes
	calls    ratelimit.Meter // on the clock of the loops, as the next
	octets   ratelimit.Meter
	gate     gate
	timer    bool // tick is due
}

// newBucket returns a bucket to which nothing is charged yet.
func newBucket(kind Reason, r Rate, waits *metrics.Counter, clock func() int64) *bucket {
	b := &bucket{kind: kind, rate: r, waits: waits, clock: clock, atOnce: 1}
	if r.Calls > 0 {
		b.perCall = int64(time.Second) / int64(r.Calls)
		b.atOnce = max(1, int(int64(r.Calls)*int64(rateTick)/int64(time.Second)))
	}
	if r.Octets > 0 {
		b.perOctet = float64(time.Second) / float64(r.Octets)
	}
	return b
}

// charge adds calls and octets at now. b.mu is held.
func (b *bucket) charge(now int64, calls, octets int) {
	b.calls.Charge(now, int64(calls)*b.perCall, int64(rateBurst))
	b.octets.Charge(now, int64(float64(octets)*b.perOctet), int64(rateBurst))
}

// wait returns how long it takes until the next Call may come. b.mu is held.
func (b *bucket) wait(now int64) int64 {
	return max(b.calls.Wait(now, 0, int64(rateBurst)), b.octets.Wait(now, 0, int64(rateBurst)))
}

// chargeCall charges a Call of n octets, and makes the client wait if the next Call may not come
// yet.
func (b *bucket) chargeCall(now int64, n int, c place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(now, 1, n)
	if wait := b.wait(now); wait > 0 && c.waitAt(b.kind, &b.gate) {
		b.waits.Inc()
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
	now := b.clock()
	b.mu.Lock()
	b.timer = false
	var next *ticket
	wait := b.wait(now)
	if wait <= 0 {
		next = b.gate.remove(b.atOnce)
		wait = int64(rateTick)
	}
	if b.gate.n > 0 {
		b.arm(wait)
	}
	b.mu.Unlock()
	runAll(next)
}

// lift ends the limit, which is not in force any more, and admits the clients that wait.
// Clients that still have the bucket are charged nothing.
func (b *bucket) lift() {
	b.mu.Lock()
	b.perCall, b.perOctet, b.calls, b.octets = 0, 0, ratelimit.Meter{}, ratelimit.Meter{}
	next := b.gate.remove(b.gate.n)
	b.mu.Unlock()
	runAll(next)
}
