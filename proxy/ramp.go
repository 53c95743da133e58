package proxy

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

const (
	rampOctets = 4 << 20 // what the first Calls and their Replies may have, about; at most a sixteenth of the budget
	rampTick   = 100 * time.Millisecond
)

// A ramp is the slow start of an upstream. When the bridge starts, and when the
// upstream comes back, every client has as many Calls ready as it has slots, and
// sends all of them at once: more than the memory for Calls holds, for a server that
// may not be able to answer one. So only a few Calls are read in at first, and one
// more for each Reply of the upstream, which doubles them with every round trip.
// A client whose Call is one too many is not read from until there is room again, nor
// is one that connects when there is none. Who waits longer than a Call may is closed.
// After pool.RampEnd of them there is no limit, and a Call costs one atomic load here.
//
// It is safe for concurrent use.
type ramp struct {
	up    atomic.Bool // no limit
	first int         // Calls read in before anything was answered; constant, as is start
	start int64       // and their octets
	clock func() int64
	wait  func() time.Duration // how long a client may wait

	mu     sync.Mutex // guards the rest; a leaf
	calls  int        // read in, not done with
	cost   int64      // of those, in octets
	most   int        // calls, and
	octets int64      // cost that may be
	coming int        // clients that were let in and have sent nothing yet
	gate   gate
	timer  bool // tick is due
	held   *metrics.Counter
	closed *metrics.Counter
}

func newRamp(m *metrics.Registry, upstream string, first int, budget int64, clock func() int64, wait func() time.Duration) *ramp {
	r := &ramp{
		first: first, clock: clock, wait: wait,
		start:  min(rampOctets, budget/16),
		held:   m.Counter("upstream_ramp_waits_total", "Times a client was not read from because the upstream had answered too little yet.", "upstream", upstream),
		closed: m.Counter("upstream_ramp_closed_clients_total", "Clients closed because they had waited for that too long.", "upstream", upstream),
	}
	r.restart()
	return r
}

// describe makes the series that look at r.
func (r *ramp) describe(m *metrics.Registry, upstream string) {
	gauge := func(name, help string, f func() int) {
		m.GaugeFunc(name, help, func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return float64(f())
		}, "upstream", upstream)
	}
	gauge("upstream_ramp_calls", "Calls that may be read in until the upstream has answered more; 0 when there is no such limit.", func() int {
		if r.up.Load() {
			return 0
		}
		return r.most
	})
	gauge("upstream_ramp_clients", "Clients that wait until the upstream has answered more.", func() int { return r.gate.n })
}

// room is how many Calls more may be read in. r.mu is held.
func (r *ramp) room() int {
	if r.cost >= r.octets {
		return 0
	}
	return max(0, r.most-r.calls)
}

// enter counts c, which a client with the ledger g has sent, and makes the client
// wait if there is no room for another. On the client's loop.
func (r *ramp) enter(c *call, g *ledger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up.Load() {
		return
	}
	c.ramped = true
	r.calls++
	r.cost += int64(c.entry.Cost)
	r.coming = max(0, r.coming-1)
	if r.room() == 0 {
		r.hold(g)
	}
}

// arrive makes a client that has just connected wait if there is no room for its
// first Call. On the client's loop.
func (r *ramp) arrive(g *ledger) {
	if r.up.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.room() > r.coming {
		r.coming++
		r.arm()
		return
	}
	r.hold(g)
}

// hold makes a client wait. r.mu is held.
func (r *ramp) hold(g *ledger) {
	if g.wait(gateRamp, &r.gate) {
		g.tickets[gateRamp].since = r.clock()
		r.held.Inc()
		r.arm()
	}
}

// leave takes c out, which the upstream has answered, or never will. Whether the
// client takes its Reply is not the upstream's concern.
func (r *ramp) leave(c *call, answered bool) {
	c.ramped = false
	r.mu.Lock()
	r.calls--
	r.cost -= int64(c.entry.Cost)
	if answered {
		r.most++
		r.octets += int64(c.entry.Cost)
		if r.most >= pool.RampEnd {
			r.up.Store(true)
		}
	}
	next := r.admit()
	r.mu.Unlock()
	turn(next)
}

// admit takes the clients that may be read from again. r.mu is held.
func (r *ramp) admit() *ticket {
	if r.up.Load() {
		return r.gate.take(r.gate.n)
	}
	n := min(r.room()-r.coming, r.gate.n)
	if n <= 0 {
		return nil
	}
	r.coming += n
	return r.gate.take(n)
}

// arm sees to it that tick comes. r.mu is held.
func (r *ramp) arm() {
	if !r.timer {
		r.timer = true
		time.AfterFunc(rampTick, r.tick)
	}
}

var errRamp = errors.New("proxy: the upstream does not answer")

// tick lets others in when those that were let in have nothing to send, and closes
// who has waited for too long.
func (r *ramp) tick() {
	late := r.clock() - int64(r.wait())
	r.mu.Lock()
	r.timer = false
	r.coming = 0
	next := r.admit()
	var closing []gated
	for r.gate.first != nil && r.gate.first.since < late {
		if t := r.gate.take(1); t != nil {
			closing = append(closing, t.s)
		}
	}
	if r.gate.n > 0 {
		r.arm()
	}
	r.mu.Unlock()
	turn(next)
	for _, s := range closing {
		s.close(errRamp)
	}
	r.closed.Add(uint64(len(closing)))
}

// restart begins anew: the upstream is not there.
func (r *ramp) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up.Store(r.first >= pool.RampEnd)
	r.most, r.octets = r.first, r.start
}
