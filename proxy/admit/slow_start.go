package admit

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
	// slowStartTick is the time between two looks at the clients that wait.
	slowStartTick = 100 * time.Millisecond
)

// An SlowStart makes clients wait as long as the slow start of their upstream has no
// room for another Call. When a client's Call takes the last of the room, the bridge does not
// read from the client until there is room again. When the first Call of a client comes while
// there is no room, the bridge does not read it before. A client that has waited longer than a
// Call may wait for a credit is closed. Clients that send nothing are not counted, nor are NULL
// Calls, which need no memory. A quarter of the room is for hosts that have no Call under way, and
// hosts take turns, so that no host has all of the slow start. Once the slow start is over, a
// Call costs one atomic load here.
//
// It is safe for concurrent use.
type SlowStart struct {
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

	held     map[*Host]int // Calls that the slow start counts, or has counted and that are under way
	comingOf map[*Host]int // coming, by host
}

// SlowStartOctetsOf bounds the octets of the first Calls of a slow start.
func SlowStartOctetsOf(budget int64) int64 { return min(slowStartOctets, budget/16) }

// A starter is a client as slow start sees it. It belongs to the client's loop.
type starter struct {
	waiter
	waited *SlowStart // where the client waits, or that may count it among those to come; nil for none
}

// ticket returns the client's ticket for the gates of slow start.
func (g *starter) ticket() *ticket { return g.tickets.of(gateSlowStart, &g.waiter) }

// FollowSlowStart has a client leave the slow start for which it waits, or where it is counted among those to come, if
// of is false of that: the upstreams of its listener are others now.
func (g *starter) FollowSlowStart(of func(*SlowStart) bool) {
	a := g.waited
	if a == nil || of(a) {
		return
	}
	a.gone(g)
	g.waited = nil
	if g.shut&(1<<gateSlowStart) != 0 {
		g.tickets.leave(gateSlowStart)
		g.shut &^= 1 << gateSlowStart
		g.conn.Resume()
	}
}

// leaveSlowStart gives the client's place in a slow start to another one.
func (g *starter) leaveSlowStart() {
	if a := g.waited; a != nil {
		a.gone(g)
	}
}

// NewSlowStart makes the slow start of the clients of an upstream.
func NewSlowStart(
	m *metrics.Registry, upstream string, s *pool.SlowStart, clock func() int64, wait func() time.Duration,
) *SlowStart {
	return &SlowStart{
		slowStart: s, clock: clock, wait: wait, round: 1, held: make(map[*Host]int), comingOf: make(map[*Host]int),
		waits:  m.Counter(metrics.UpstreamSlowStartWaits, upstream),
		closed: m.Counter(metrics.UpstreamSlowStartClosedClients, upstream),
	}
}

// Describe registers the gauges that read a.
func (a *SlowStart) Describe(m *metrics.Registry, upstream string) {
	m.GaugeFunc(metrics.UpstreamSlowStartCalls, func() float64 {
		return float64(a.slowStart.Limit())
	}, upstream)
	m.GaugeFunc(metrics.UpstreamSlowStartWaitingClients, func() float64 { return float64(a.Clients()) }, upstream)
}

// Clients is how many clients wait.
func (a *SlowStart) Clients() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gate.n
}

// enter counts a Call with this cost, which the client g has sent, and makes the client
// wait if there is no room for another Call. Procedure 0 counts as no Call. On the client's loop.
func (a *SlowStart) enter(c *Charge, procedure uint32, cost int, g *starter) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	if g.waited == a {
		a.came(g)
	}
	var next *ticket
	if procedure == 0 {
		next = a.next()
	} else if room, age := a.slowStart.Received(cost); age != 0 {
		c.slowStart, c.host = age, g.host
		a.held[g.host]++
		if room <= a.kept() {
			a.hold(g)
		}
	}
	a.mu.Unlock()
	runAll(next)
}

// kept is how much of the room is for hosts that have no Call under way. a.mu is held.
func (a *SlowStart) kept() int { return a.slowStart.Limit() / 4 }

// may reports whether another client of h may be read from, while there is some room. a.mu is held.
func (a *SlowStart) may(h *Host, room int) bool {
	return room > a.kept() || room > 0 && a.held[h]+a.comingOf[h] == 0
}

// expect counts the client of t among those to come. a.mu is held.
func (a *SlowStart) expect(t *ticket, h *Host) {
	t.round, t.host = a.round, h
	a.coming++
	a.comingOf[h]++
}

// uncount ends the count of c, if the slow start has counted it. a.mu is held.
func (a *SlowStart) uncount(c *Charge) {
	if c.slowStart == 0 {
		return
	}
	h := c.host
	if a.held[h]--; a.held[h] == 0 {
		delete(a.held, h)
	}
	c.slowStart, c.host = 0, nil
}

// came ends the count of a client among those to come. a.mu is held.
func (a *SlowStart) came(g *starter) {
	t := g.ticket()
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
func (a *SlowStart) gone(g *starter) {
	a.mu.Lock()
	a.came(g)
	next := a.next()
	a.mu.Unlock()
	runAll(next)
}

// arrive makes a client wait if there is no room for its first Call, which waits to be read.
// On the client's loop.
func (a *SlowStart) arrive(g *starter) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.may(g.host, a.slowStart.Room()-a.coming) {
		a.expect(g.ticket(), g.host)
		g.waited = a
		a.arm()
		return
	}
	a.hold(g)
}

// hold makes a client wait. a.mu is held.
func (a *SlowStart) hold(g *starter) {
	if g.waitAt(gateSlowStart, &a.gate) {
		t := g.ticket()
		t.since, t.round, g.waited = a.clock(), 0, a
		a.waits.Inc()
		a.arm()
	}
}

// Dropped ends the count of c, which the upstream will not answer.
func (a *SlowStart) Dropped(c *Charge, cost int) {
	a.slowStart.Dropped(cost, c.slowStart)
	a.left(c)
}

// Answered ends the count of c, which the upstream has answered, and admits clients.
// Calls that were read before the upstream lost its last connection are not counted, and
// their Replies raise the limit like others. here is the affinity of the calling loop.
func (a *SlowStart) Answered(c *Charge, cost, here int) {
	if c.slowStart == 0 && a.slowStart.Over() {
		return
	}
	a.slowStart.Answered(cost, c.slowStart, here)
	a.left(c)
}

// left ends the count of c by host, and has the bridge read again from as many of the waiting clients
// as there is room for.
func (a *SlowStart) left(c *Charge) {
	a.mu.Lock()
	a.uncount(c)
	next := a.next()
	a.mu.Unlock()
	runAll(next)
}

// next returns the clients that may be read from again. a.mu is held.
func (a *SlowStart) next() (first *ticket) {
	if a.slowStart.Over() {
		return a.gate.remove(a.gate.n)
	}
	if a.gate.n == 0 {
		return nil
	}
	room := a.slowStart.Room() - a.coming
	may := func(h *Host) bool { return a.may(h, room) }
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
func (a *SlowStart) arm() {
	if !a.timer {
		a.timer = true
		time.AfterFunc(slowStartTick, a.tick)
	}
}

var errSlowStart = errors.New("proxy: the upstream has not answered for too long during its slow start")

// tick admits other clients instead of those that were admitted and have sent nothing, and
// closes the clients that have waited too long.
func (a *SlowStart) tick() {
	late := a.clock() - int64(a.wait())
	a.mu.Lock()
	a.timer = false
	a.coming = 0
	clear(a.comingOf)
	a.round++
	next := a.next()
	var closing []Conn
	for t := a.gate.since(late); t != nil; t = t.next {
		closing = append(closing, t.holder.connection())
	}
	if a.gate.n > 0 {
		a.arm()
	}
	a.mu.Unlock()
	runAll(next)
	for _, s := range closing {
		s.Close(errSlowStart)
	}
	a.closed.Add(uint64(len(closing)))
}
