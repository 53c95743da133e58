package proxy

import (
	"net/netip"
	"slices"

	"github.com/rdmabridge/rdmabridge/pool"
)

// A ledger counts the Calls of one client connection that are under way and the octets of the
// Replies that the client is owed. It also has the client's queues at the upstreams, and its
// tickets for the gates where it may have to wait. It belongs to the client's loop.
type ledger struct {
	front  *front // the connection; constant
	host   *host  // what shares are divided among; constant until close
	weight int    // the client's share, relative to other clients

	queues  []*clientQueue
	repeats *call // the first of the Calls that are held, linked by next and prev: flights.go

	// Calls under way, and their Replies.
	calls int   // Calls read and not settled
	owed  int64 // octets that Replies to come are expected to have, plus held
	held  int64 // octets of memory of the Replies that came and that the client does not have yet
	taken int64 // octets of memory that all Replies took which the client has received
	large int   // about the most octets of memory that a Reply without a bound took lately
	seen  snapshot
	full  uint16 // tcpClient.admit: what over has returned, as long as low has not been true since

	// Where the client waits.
	shut    uint16      // the gates where the client waits, a bit for each gateKind
	ordered int32       // Calls under RPCSEC_GSS that keep their order: gss_context.go
	tickets tickets     // for gates that are not those of a tenant
	waited  *admission  // the admission where the client waits, or that may count it among those to come; nil for none
	rates   *rates      // of the listener; nil for none
	buckets []*bucket   // of rates, those that limit this client
	member  *membership // nil for a client that was never in a tenant
}

// A snapshot is what slowClients saw of a ledger when it looked last.
type snapshot struct {
	round       uint32
	held, taken int64
}

// open begins the ledger of f.
func (g *ledger) open(f *front) {
	l := f.listener
	s := l.settings()
	g.front = f
	g.host = l.p.hosts.join(g.addr())
	g.weight = g.weigh(s)
	s.rates.join(g.addr(), g)
}

// addr is the client's address.
func (g *ledger) addr() netip.Addr { return g.front.peer.Addr().Unmap() }

// origin is what a server would know the client by.
func (g *ledger) origin() origin { return originOf(g.front.peer, g.front.listener.isRDMA) }

// weigh returns the client's weight by the settings s, or by its tenant.
func (g *ledger) weigh(s *listenerSettings) int {
	w := s.weight(g.addr())
	if m := g.member; m != nil {
		w = m.tenant.weightOf(w)
	}
	return w
}

// slowStart returns the admission where the client has to ask before its first Call is read, or
// nil if an upstream of the listener is beyond its slow start.
func (g *ledger) slowStart() *admission {
	us := g.front.listener.settings().upstreams()
	if len(us) == 0 || slices.ContainsFunc(us, func(u *upstream) bool { return u.slowStart.Over() }) {
		return nil
	}
	return us[0].admission
}

// arrive makes the client wait if it has to ask for its first Call, which waits to be read, and
// there is no room for it. A client that sends nothing never asks, and holds no place.
func (g *ledger) arrive() {
	if a := g.slowStart(); a != nil {
		a.arrive(g)
	}
}

// close ends the ledger of a client that has gone: it removes the client's Calls from all
// queues, closes the client's pinned connections and takes the client from its lanes.
func (g *ledger) close() {
	g.rates.leave(g)
	if m := g.member; m != nil {
		m.leave()
	}
	if a := g.waited; a != nil {
		a.gone(g)
	}
	for _, q := range g.queues {
		if g.ordered > 0 {
			q.u.contexts.forget(g.front)
		}
		q.forget(g.front.loop.batch, errClientGone)
		q.leave()
	}
	g.queues = nil
	for c := g.repeats; c != nil; c = c.next {
		if g.front.listener.p.flights.withdraw(c) {
			c.finish(pool.Elsewhere)
		}
	}
	g.front.listener.p.hosts.leave(g.host)
}

// follow applies the listener's settings in force to the client, and the tenants: its weight, its rate
// limits, for which slow start it waits, and whether it may have pinned connections. Debts to a rate limit that has changed
// are forgotten; rates.replaced admits a client that waits for such a limit. NFS clients stay
// for months, so follow forgets the queues at upstreams that have ended, in which no Call is
// left.
func (g *ledger) follow() {
	l := g.front.listener
	s := l.settings()
	g.followTenant()
	if w := g.weigh(s); w != g.weight {
		g.weight = w
		l.reweigh(g.front)
		for _, q := range g.queues {
			q.reweigh(w)
		}
	}
	g.queues = slices.DeleteFunc(g.queues, func(q *clientQueue) bool { return l.p.removed(q.u) })
	for _, q := range g.queues {
		if !q.stays() {
			q.decided = q.u.settings().Mode == ModeShared
		}
	}
	if s.rates != g.rates {
		g.rates.leave(g)
		s.rates.join(g.addr(), g)
	}
	if g.waited != nil {
		g.followSlowStart(s.upstreams())
	}
}

// over returns the bit of a waitReason if the client has as much under way as it may, and otherwise 0: one
// greedy client must not fill the memory that the Replies to all the others need.
func (g *ledger) over() uint16 {
	s := g.front.listener.settings()
	switch {
	case g.calls >= s.opts.MaxCalls:
		return 1 << waitCalls
	case g.owed >= s.maxOwed:
		return 1 << waitReplies
	}
	return 0
}

// low reports whether a client that was over may send Calls again. It has to be well below the
// limits first.
func (g *ledger) low() bool {
	s := g.front.listener.settings()
	return g.calls == 0 || g.calls <= s.opts.MaxCalls/2 && g.owed <= s.maxOwed/2
}

// charge counts c, which the client has sent.
func (g *ledger) charge(c *call) {
	g.calls++
	g.owed += int64(c.charge.expected)
	c.charge.counted = true
	if m := g.member; m != nil {
		m.begin(c)
	}
}

// hold counts c as absorbed. c is held, because it repeats a Call: flights.go.
func (g *ledger) hold(c *call) {
	g.front.counts.results[resultAbsorbed].Inc()
	c.absorbed, c.usesSeldom = true, true
	if c.next = g.repeats; c.next != nil {
		c.next.prev = c
	}
	g.repeats = c
}

// unhold undoes the part of hold that is not a count, if that has not been done.
func (g *ledger) unhold(c *call) {
	switch {
	case c.prev != nil:
		c.prev.next = c.next
	case g.repeats == c:
		g.repeats = c.next
	default:
		return
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}

// lend counts the memory that the Reply of c takes until the client has it, instead of the
// octets that were expected.
func (g *ledger) lend(c *call) {
	memory := c.reply.memory
	more := memory - c.charge.expected
	g.owed += int64(more)
	g.held += int64(memory)
	c.charge.expected, c.charge.lent = memory, true
	if m := g.member; m != nil {
		m.lend(c, more)
	}
	for _, b := range g.buckets {
		b.chargeReply(g.front.loop.Now(), octets(c.reply.parts))
	}
	if c.rdma.Analysis.Known {
		return
	}
	if memory > g.large {
		g.large = memory
	} else {
		g.large -= (g.large - memory) / 64
	}
}

// settle ends what the ledger and the slow start count for c. The client has the Reply, or will
// never have it.
func (g *ledger) settle(c *call) {
	if c.charge.slowStart != 0 {
		c.up.admission.dropped(c)
	}
	if !c.charge.counted {
		return
	}
	if m := g.member; m != nil {
		m.settle(c)
	}
	g.calls--
	g.owed -= int64(c.charge.expected)
	if c.charge.lent {
		g.held -= int64(c.reply.memory)
		g.taken += int64(c.reply.memory)
	}
	c.charge.counted, c.charge.lent = false, false
}

// slow is how many octets of memory the client's Replies take, if the client has received
// less since the previous round than waited for it then, and otherwise 0.
func (g *ledger) slow(round uint32) int64 {
	was := g.seen
	g.seen = snapshot{round, g.held, g.taken}
	if was.round != round-1 || g.taken-was.taken >= was.held {
		return 0
	}
	return g.held
}
