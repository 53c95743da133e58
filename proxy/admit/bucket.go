package admit

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
)

const (
	// rateBurst is how long a silent listener or address saves up its rate: after that it may
	// send as much at once as it might have sent in rateBurst.
	rateBurst = 250 * time.Millisecond
	// rateTick is the time between two looks at the clients that wait for a bucket.
	rateTick = 10 * time.Millisecond
)

// A bucket limits the rate of the clients of a listener or tenant, or of one address. While its Calls or octets are
// ahead of their rates, the bridge stops reading from a client that sends another Call. It drops nothing, and a client
// sends at most one Call too many. A bucket needs a timer while a client waits, and none for a Call.
//
// It is safe for concurrent use.
type bucket struct {
	limit *rateLimit // constant
	refs  int        // connections; guarded by limit.mu

	mu     sync.Mutex      // guards the rest; a leaf
	calls  ratelimit.Meter // on the clock of the loops, as the next
	octets ratelimit.Meter
	gate   gate
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

// chargeCall charges a Call of n octets of g, and makes g wait if the next Call may not come yet.
func (b *bucket) chargeCall(now int64, n int, g *Client) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(now, 1, n)
	if wait := b.wait(now); wait > 0 && g.waitAt(b.limit.kind, &b.gate) != nil {
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
	var next *ticket
	wait := b.wait(now)
	if wait <= 0 {
		next = b.gate.remove(b.limit.atOnce)
		wait = int64(rateTick)
	}
	if b.gate.n > 0 {
		b.arm(wait)
	}
	b.mu.Unlock()
	runAll(next)
}

// lift admits the clients that wait, because the limit is not in force any more. Clients that still have the bucket are
// charged nothing.
func (b *bucket) lift() {
	b.mu.Lock()
	b.lifted, b.calls, b.octets = true, ratelimit.Meter{}, ratelimit.Meter{}
	next := b.gate.remove(b.gate.n)
	b.mu.Unlock()
	runAll(next)
}
