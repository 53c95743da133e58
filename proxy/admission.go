package proxy

import (
	"errors"
	"slices"
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
// room for another Call. When a client's Call takes the last of the room, the bridge does not
// read from the client until there is room again. When the first Call of a client comes while
// there is no room, the bridge does not read it before. A client that has waited longer than a
// Call may wait for a credit is closed. Clients that send nothing are not counted, nor are NULL
// Calls, which need no memory. A quarter of the room is for hosts that have no Call under way, and
// hosts take turns, so that no host has all of the slow start. Once the slow start is over, a
// Call costs one atomic load here.
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
	round  int        // the number of the round, from 1; each tick begins another
	gate   gate
	timer  bool // tick is due

	held     map[*host]int // Calls that the slow start counts, or has counted and that are under way
	comingOf map[*host]int // coming, by host
}

// newAdmission makes the admission of the clients of an upstream.
func newAdmission(m *metrics.Registry, upstream string, s *pool.SlowStart, clock func() int64, wait func() time.Duration) *admission {
	return &admission{
		slowStart: s, clock: clock, wait: wait, round: 1, held: make(map[*host]int), comingOf: make(map[*host]int),
		waits:  m.Counter(metrics.UpstreamSlowStartWaits, upstream),
		closed: m.Counter(metrics.UpstreamSlowStartClosedClients, upstream),
	}
}

// describe registers the gauges that read a.
func (a *admission) describe(m *metrics.Registry, upstream string) {
	m.GaugeFunc(metrics.UpstreamSlowStartCalls, func() float64 {
		return float64(a.slowStart.Limit())
	}, upstream)
	m.GaugeFunc(metrics.UpstreamSlowStartWaitingClients, func() float64 { return float64(a.clients()) }, upstream)
}

// clients is how many clients wait.
func (a *admission) clients() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gate.n
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
		c.charge.slowStart, c.charge.host = age, g.host
		a.held[g.host]++
		if room <= a.kept() {
			a.hold(g)
		}
	}
	a.mu.Unlock()
	runAll(next)
}

// kept is how much of the room is for hosts that have no Call under way. a.mu is held.
func (a *admission) kept() int { return a.slowStart.Limit() / 4 }

// may reports whether another client of h may be read from, while there is some room. a.mu is held.
func (a *admission) may(h *host, room int) bool {
	return room > a.kept() || room > 0 && a.held[h]+a.comingOf[h] == 0
}

// expect counts the client of t among those to come. a.mu is held.
func (a *admission) expect(t *ticket, h *host) {
	t.round, t.host = a.round, h
	a.coming++
	a.comingOf[h]++
}

// uncount ends the count of c, if the slow start has counted it. a.mu is held.
func (a *admission) uncount(c *call) {
	if c.charge.slowStart == 0 {
		return
	}
	h := c.charge.host
	if a.held[h]--; a.held[h] == 0 {
		delete(a.held, h)
	}
	c.charge.slowStart, c.charge.host = 0, nil
}

// came ends the count of a client among those to come. a.mu is held.
func (a *admission) came(g *ledger) {
	t := g.ticket(gateSlowStart)
	if t.round == a.round {
		a.coming--
		if a.comingOf[t.host]--; a.comingOf[t.host] == 0 {
			delete(a.comingOf, t.host)
		}
	}
	t.round = 0
	if g.shut&(1<<gateSlowStart) == 0 {
		g.waited = nil
	}
}

// gone gives the place of a client whose connection has ended, or has other upstreams, to another client. On the
// client's loop.
func (a *admission) gone(g *ledger) {
	a.mu.Lock()
	a.came(g)
	next := a.next()
	a.mu.Unlock()
	runAll(next)
}

// followSlowStart has a client leave the slow start for which it waits, or where it is counted among those to come, if
// that is of none of us: the upstreams of its listener are others now.
func (g *ledger) followSlowStart(us []*upstream) {
	a := g.waited
	if slices.ContainsFunc(us, func(u *upstream) bool { return u.admission == a }) {
		return
	}
	a.gone(g)
	g.waited = nil
	if g.shut&(1<<gateSlowStart) != 0 {
		g.tickets.leave(gateSlowStart)
		g.shut &^= 1 << gateSlowStart
		g.front.client.admit()
	}
}

// arrive makes a client wait if there is no room for its first Call, which waits to be read.
// On the client's loop.
func (a *admission) arrive(g *ledger) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.may(g.host, a.slowStart.Room()-a.coming) {
		a.expect(g.ticket(gateSlowStart), g.host)
		g.waited = a
		a.arm()
		return
	}
	a.hold(g)
}

// hold makes a client wait. a.mu is held.
func (a *admission) hold(g *ledger) {
	if g.waitAt(gateSlowStart, &a.gate) {
		t := g.ticket(gateSlowStart)
		t.since, t.round, g.waited = a.clock(), 0, a
		a.waits.Inc()
		a.arm()
	}
}

// dropped ends the count of c, which the upstream will not answer.
func (a *admission) dropped(c *call) {
	a.slowStart.Dropped(c.entry.Cost, c.charge.slowStart)
	a.left(c)
}

// answered ends the count of c, which the upstream has answered, and admits clients.
// Calls that were read before the upstream lost its last connection are not counted, and
// their Replies raise the limit like others. here is the affinity of the calling loop.
func (a *admission) answered(c *call, here int) {
	if c.charge.slowStart == 0 && a.slowStart.Over() {
		return
	}
	a.slowStart.Answered(c.entry.Cost, c.charge.slowStart, here)
	a.left(c)
}

// left ends the count of c by host, and has the bridge read again from as many of the waiting clients
// as there is room for.
func (a *admission) left(c *call) {
	a.mu.Lock()
	a.uncount(c)
	next := a.next()
	a.mu.Unlock()
	runAll(next)
}

// next returns the clients that may be read from again. a.mu is held.
func (a *admission) next() (first *ticket) {
	if a.slowStart.Over() {
		return a.gate.remove(a.gate.n)
	}
	if a.gate.n == 0 {
		return nil
	}
	room := a.slowStart.Room() - a.coming
	may := func(h *host) bool { return a.may(h, room) }
	for end := &first; room > 0; room-- {
		t := a.gate.take(may)
		if t == nil {
			break
		}
		a.expect(t, t.host)
		*end = t
		end = &t.next
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
	clear(a.comingOf)
	a.round++
	next := a.next()
	var closing []waitingClient
	for t := a.gate.since(late); t != nil; t = t.next {
		closing = append(closing, t.client)
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
