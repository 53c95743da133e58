package proxy

import (
	"errors"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

const (
	// slowStartOctets is about how many octets the first Calls and their Replies may
	// have; at most a sixteenth of the budget.
	slowStartOctets = 4 << 20
	// admissionTick is the time between two looks at the clients that wait.
	admissionTick = 100 * time.Millisecond
)

// An admission makes clients wait as long as the slow start of their upstream has no
// room for another Call. A client whose Call is one too many is not read from until
// there is room, nor is a client whose first Call comes while there is none. A client that
// has waited longer than a Call may wait for a credit is closed. Clients that send nothing
// have no place here, nor have NULL Calls, which need no memory. Once the slow start is
// over, a Call costs one atomic load here.
//
// It is safe for concurrent use.
type admission struct {
	slowStart *pool.SlowStart
	clock     func() int64
	wait      func() time.Duration // longest wait of a client
	waits     *metrics.Counter
	closed    *metrics.Counter

	mu     sync.Mutex // guards the rest; taken before that of slowStart
	coming int        // clients that were admitted in this round and have sent nothing since
	round  int        // begins with each tick, from 1
	gate   gate
	timer  bool // tick is due
}

// newAdmission makes the admission of the clients of an upstream.
func newAdmission(m *metrics.Registry, upstream string, s *pool.SlowStart, clock func() int64, wait func() time.Duration) *admission {
	return &admission{
		slowStart: s, clock: clock, wait: wait, round: 1,
		waits:  m.Counter("upstream_ramp_waits_total", "Times that the bridge stopped reading from a client because the slow start of the upstream had no room for another Call.", "upstream", upstream),
		closed: m.Counter("upstream_ramp_closed_clients_total", "Clients closed because the slow start of the upstream had no room for too long.", "upstream", upstream),
	}
}

// describe registers the gauges that read a.
func (a *admission) describe(m *metrics.Registry, upstream string) {
	m.GaugeFunc("upstream_ramp_calls", "Calls that may be read from clients and wait for Replies during the slow start of the upstream; 0 when the slow start is over.", func() float64 {
		return float64(a.slowStart.Limit())
	}, "upstream", upstream)
	m.GaugeFunc("upstream_ramp_clients", "Clients that the bridge does not read from because of the slow start of the upstream.", func() float64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		return float64(a.gate.n)
	}, "upstream", upstream)
}

// enter counts c, which a client with the ledger g has sent, and makes the client
// wait if there is no room for another Call. On the client's loop.
func (a *admission) enter(c *call, g *ledger) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	if g.waited == a {
		a.came(g)
	}
	var next *ticket
	if c.h.Procedure == 0 {
		next = a.next()
	} else if room, age := a.slowStart.Received(c.entry.Cost); age != 0 {
		c.charge.slowStart = age
		if room == 0 {
			a.hold(g)
		}
	}
	a.mu.Unlock()
	runAll(next)
}

// came ends the count of a client among those to come. a.mu is held.
func (a *admission) came(g *ledger) {
	t := &g.tickets[gateSlowStart]
	if t.round == a.round {
		a.coming--
	}
	t.round, g.waited = 0, nil
}

// gone gives the place of a client that has ended to another. On the client's loop.
func (a *admission) gone(g *ledger) {
	a.mu.Lock()
	a.came(g)
	next := a.next()
	a.mu.Unlock()
	runAll(next)
}

// arrive makes a client wait if there is no room for its first Call, which waits to be read.
// On the client's loop.
func (a *admission) arrive(g *ledger) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.slowStart.Room() > a.coming {
		a.coming++
		g.waited, g.tickets[gateSlowStart].round = a, a.round
		a.arm()
		return
	}
	a.hold(g)
}

// hold makes a client wait. a.mu is held.
func (a *admission) hold(g *ledger) {
	if g.waitAt(gateSlowStart, &a.gate) {
		t := &g.tickets[gateSlowStart]
		t.since, t.round, g.waited = a.clock(), 0, a
		a.waits.Inc()
		a.arm()
	}
}

// dropped ends the count of c, which the upstream will not answer.
func (a *admission) dropped(c *call) {
	a.slowStart.Dropped(c.entry.Cost, c.charge.slowStart)
	c.charge.slowStart = 0
	a.admit()
}

// answered ends the count of c, which the upstream has answered, and admits clients.
// Calls that were read before the upstream lost its last connection are not counted, and
// their Replies raise the limit like others. here is the affinity of the calling loop.
func (a *admission) answered(c *call, here int) {
	if c.charge.slowStart == 0 && a.slowStart.Over() {
		return
	}
	a.slowStart.Answered(c.entry.Cost, c.charge.slowStart, here)
	c.charge.slowStart = 0
	a.admit()
}

// admit has the bridge read again from as many of the waiting clients as there is room for.
func (a *admission) admit() {
	a.mu.Lock()
	next := a.next()
	a.mu.Unlock()
	runAll(next)
}

// next returns the clients that may be read from again. a.mu is held.
func (a *admission) next() *ticket {
	if a.slowStart.Over() {
		return a.gate.remove(a.gate.n)
	}
	n := min(a.slowStart.Room()-a.coming, a.gate.n)
	if n <= 0 {
		return nil
	}
	first := a.gate.remove(n)
	for t := first; t != nil; t = t.next {
		t.round = a.round
		a.coming++
	}
	return first
}

// arm starts the timer of tick if it does not run. a.mu is held.
func (a *admission) arm() {
	if !a.timer {
		a.timer = true
		time.AfterFunc(admissionTick, a.tick)
	}
}

var errSlowStart = errors.New("proxy: the upstream has not answered for too long during its slow start")

// tick admits other clients instead of those that were admitted and have sent nothing, and
// closes the clients that have waited too long.
func (a *admission) tick() {
	late := a.clock() - int64(a.wait())
	a.mu.Lock()
	a.timer = false
	a.coming = 0
	a.round++
	next := a.next()
	var closing []waitingClient
	for a.gate.first != nil && a.gate.first.since < late {
		if t := a.gate.remove(1); t != nil {
			closing = append(closing, t.client)
		}
	}
	if a.gate.n > 0 {
		a.arm()
	}
	a.mu.Unlock()
	runAll(next)
	for _, s := range closing {
		s.close(errSlowStart)
	}
	a.closed.Add(uint64(len(closing)))
}
