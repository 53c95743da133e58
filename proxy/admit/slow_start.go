package admit

import (
	"errors"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

const (
	// slowStartOctets is about how many octets the first Calls and their Replies may
	// have; at most a sixteenth of the budget.
	slowStartOctets = 4 << 20
	// slowStartTick is the time between two looks at the clients that wait.
	slowStartTick = 100 * time.Millisecond
)

// A SlowStart makes clients wait as long as the slow start of their upstream has no room for another Call. When a
// client's Call takes the last of the room, the bridge does not read from the client until there is room again. When
// the first Call of a client comes while there is no room, the bridge does not read it before. A client that has waited
// longer than a Call may wait for a credit is closed. Clients that send nothing are not counted, nor are NULL Calls,
// which need no memory. A quarter of the room is for hosts that have no Call under way, and hosts take turns, so that
// no host has all of the slow start. Once the slow start is over, a Call costs one atomic load here.
//
// It is safe for concurrent use.
type SlowStart struct {
	slowStart *slowstart.Window
	clock     func() int64
	wait      func() time.Duration // longest wait of a client
	waits     *metrics.Counter
	closed    *metrics.Counter

	mu     sync.Mutex                 // guards the rest; taken before that of slowStart
	coming map[*gates.Waiter]struct{} // those that were admitted since the last tick and have sent nothing since
	held   map[crowd.Host]int         // clients in coming, and Calls that the slow start counts, or has counted and that are under way
	gate   gates.Gate
	timer  bool // tick is due
}

// A starter is a client as slow start sees it. It belongs to the client's loop.
type starter struct {
	waiter gates.Waiter
	host   *Host      // what shares are divided among; constant until the client has gone
	waited *SlowStart // where the client waits, or that may count it among those to come; nil for none
}

// leaveSlowStart gives the client's place in a slow start to another one.
func (g *starter) leaveSlowStart() {
	if a := g.waited; a != nil {
		a.gone(g)
	}
}

// SlowStartOctetsOf bounds the octets of the first Calls of a slow start.
func SlowStartOctetsOf(budget int64) int64 { return min(slowStartOctets, budget/16) }

// NewSlowStart makes the slow start of the clients of an upstream.
func NewSlowStart(
	m *metrics.Registry, upstream string, s *slowstart.Window, clock func() int64, wait func() time.Duration,
) *SlowStart {
	return &SlowStart{
		slowStart: s, clock: clock, wait: wait, coming: make(map[*gates.Waiter]struct{}), held: make(map[crowd.Host]int),
		waits:  m.Counter(metrics.UpstreamSlowStartWaits, upstream),
		closed: m.Counter(metrics.UpstreamSlowStartClosedClients, upstream),
	}
}

// Describe registers the gauges that read a.
func (a *SlowStart) Describe(m *metrics.Registry, upstream string) {
	m.GaugeFunc(metrics.UpstreamSlowStartCalls, func() float64 { return float64(a.slowStart.Limit()) }, upstream)
	m.GaugeFunc(metrics.UpstreamSlowStartWaitingClients, func() float64 { return float64(a.Clients()) }, upstream)
}

// Clients is how many clients wait.
func (a *SlowStart) Clients() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gate.Waiting()
}

// enter counts the Call of c with this cost, which g has sent, and makes g wait if there is no room for another Call.
// Procedure 0 counts as no Call. On the client's loop.
func (a *SlowStart) enter(c *Charge, procedure uint32, cost int, g *starter) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	a.came(&g.waiter)
	if procedure == 0 {
		a.unlock()
		return
	}
	defer a.mu.Unlock()
	if room, age := a.slowStart.Received(cost); age != 0 {
		c.slowStart, c.host = age, g.host
		a.held[g.host.id]++
		if room <= a.kept() {
			a.hold(g)
		}
	}
}

// arrive makes g wait if there is no room for its first Call, which waits to be read. On the client's loop.
func (a *SlowStart) arrive(g *starter) {
	if a.slowStart.Over() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	g.waited = a
	if !a.expect(&g.waiter, a.room()) {
		a.hold(g)
	}
}

// FollowSlowStart has a client leave the slow start for which it waits, or where it is counted among those to come, if of is
// false of that: the upstreams of its listener are others now. On the client's loop.
func (g *starter) FollowSlowStart(of func(*SlowStart) bool) {
	a := g.waited
	if a == nil || of(a) {
		return
	}
	waits := g.waiter.Shut()&(1<<gates.GateSlowStart) != 0
	g.waiter.LeaveGates(1 << gates.GateSlowStart)
	a.gone(g)
	if waits {
		g.waiter.Conn().Resume()
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

// left ends the count of c by host.
func (a *SlowStart) left(c *Charge) {
	a.mu.Lock()
	defer a.unlock()
	if c.slowStart != 0 {
		a.uncount(c.host.id)
		c.slowStart = 0
	}
}

// gone gives the place of a client whose connection has ended, or has other upstreams, to another client. On the
// client's loop.
func (a *SlowStart) gone(g *starter) {
	a.mu.Lock()
	defer a.unlock()
	a.came(&g.waiter)
	g.waited = nil
}

// unlock unlocks a.mu, and has the bridge read again from as many of the waiting clients as there is room for.
func (a *SlowStart) unlock() {
	next := a.next()
	a.mu.Unlock()
	gates.RunAll(next)
}

// kept is how much of the room is for hosts that have no Call under way. a.mu is held.
func (a *SlowStart) kept() int { return a.slowStart.Limit() / 4 }

// room is how many more Calls may be read. a.mu is held.
func (a *SlowStart) room() int { return a.slowStart.Room() - len(a.coming) }

// expect counts g among those to come, and returns true, if g may be read from while there is so much room. a.mu is
// held.
func (a *SlowStart) expect(g *gates.Waiter, room int) bool {
	if room <= 0 || room <= a.kept() && a.held[g.Host()] > 0 {
		return false
	}
	a.coming[g] = struct{}{}
	a.held[g.Host()]++
	a.arm()
	return true
}

// came ends the count of g among those to come. a.mu is held.
func (a *SlowStart) came(g *gates.Waiter) {
	if _, ok := a.coming[g]; ok {
		delete(a.coming, g)
		a.uncount(g.Host())
	}
}

// uncount counts one client to come or one Call of h less. a.mu is held.
func (a *SlowStart) uncount(h crowd.Host) {
	if a.held[h]--; a.held[h] == 0 {
		delete(a.held, h)
	}
}

// hold makes a client wait. a.mu is held.
func (a *SlowStart) hold(g *starter) {
	if t := g.waiter.WaitAt(gates.GateSlowStart, &a.gate); t != nil {
		t.Since, g.waited = a.clock(), a
		a.waits.Inc()
		a.arm()
	}
}

// next returns the clients that may be read from again. a.mu is held.
func (a *SlowStart) next() *gates.Ticket {
	if a.gate.Waiting() == 0 || a.slowStart.Over() {
		return a.gate.Remove(a.gate.Waiting())
	}
	room := a.room()
	return a.gate.TakeList(room, func(t *gates.Ticket) (ok bool) {
		if ok = a.expect(t.Client(), room); ok {
			room--
		}
		return ok
	})
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
	for g := range a.coming {
		a.uncount(g.Host())
	}
	clear(a.coming)
	next := a.next()
	closing := a.gate.TakeList(a.gate.Waiting(), func(t *gates.Ticket) bool { return t.Since < late })
	if a.gate.Waiting() > 0 {
		a.arm()
	}
	a.mu.Unlock()
	gates.RunAll(next)
	a.closed.Add(uint64(closing.CloseAll(errSlowStart)))
}
