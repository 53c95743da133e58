package proxy

import (
	"net/netip"
	"slices"
	"time"
)

// A ledger is what one client connection has under way and is owed, its queues at the
// upstreams, and its places at the gates where it may have to wait. It belongs to the
// client's loop.
type ledger struct {
	front  *front     // whose ledger it is; constant, as the next two
	addr   netip.Addr // of the client
	slot   uint16     // of the client's XIDs: xid_slot.go
	weight int        // the client's share, relative to other clients

	queues []*clientQueue

	// Calls under way, and their Replies.
	calls int   // Calls read and not settled
	owed  int64 // octets of Replies that may come, about, and of those that are here
	held  int64 // octets of memory that Replies take which the client does not have yet
	taken int64 // octets of memory that Replies took which the client has
	full  bool  // the client has as much under way as it may: over, until low
	large int   // octets of memory that the client's Replies without a bound took lately, at most
	seen  snapshot

	// Where the client waits.
	shut    uint8 // the gates where it does, a bit for each gateKind
	tickets [gates]ticket
	rates   *rates    // of the listener; nil for none
	buckets []*bucket // of rates, those that limit this client
}

// A snapshot is what slowClients saw of a ledger when it looked last.
type snapshot struct {
	round       uint32
	held, taken int64
}

// open begins the ledger of f. While none of the listener's upstreams has answered enough, a
// client that has just connected may have to wait before its first Call is read.
func (g *ledger) open(f *front) {
	for i := range g.tickets {
		g.tickets[i] = ticket{client: f, kind: gateKind(i)}
	}
	l := f.listener
	s := l.settings()
	g.front, g.addr = f, f.peer.Addr().Unmap()
	g.weight = s.weight(g.addr)
	s.rates.join(g.addr, g)
	g.slot = l.p.xids.slots.take(g.addr, time.Now())
	if us := s.routes.all(); len(us) > 0 && !slices.ContainsFunc(us, func(u *upstream) bool { return u.slowStart.Over() }) {
		us[0].admission.arrive(g)
	}
}

// close ends the ledger of a client that has gone. Its waiting Calls leave every queue, and
// its pinned connections end.
func (g *ledger) close() {
	g.rates.leave(g)
	g.front.listener.p.xids.slots.leave(g.addr, g.slot, time.Now())
	for _, q := range g.queues {
		q.forget(errClientGone)
		if q.pin != nil {
			q.pin.release()
		}
	}
	g.queues = nil
}

// follow makes the listener's settings of now hold for the client: its weight, its rate
// limits, and whether it may have pinned connections. Debts to a rate limit that has changed
// are forgotten; a client that waits for such a limit goes on when rates.end ends it. Queues
// at upstreams that have ended, which have no Calls any more, are forgotten, because NFS
// clients stay for months.
func (g *ledger) follow() {
	l := g.front.listener
	s := l.settings()
	if w := s.weight(g.addr); w != g.weight {
		g.weight = w
		for _, q := range g.queues {
			q.reweigh(w)
		}
	}
	g.queues = slices.DeleteFunc(g.queues, func(q *clientQueue) bool { return l.p.removed(q.u) })
	for _, q := range g.queues {
		if q.pin == nil {
			q.decided = q.u.pins.most.Load() == 0
		}
	}
	if s.rates != g.rates {
		g.rates.leave(g)
		s.rates.join(g.addr, g)
	}
}

// over reports that the client has as much under way as it may: one greedy client must not
// fill the memory that the Replies to all the others need.
func (g *ledger) over() bool {
	s := g.front.listener.settings()
	return g.calls >= s.opts.MaxCalls || g.owed >= s.maxOwed
}

// low reports that there is room again, with hysteresis.
func (g *ledger) low() bool {
	s := g.front.listener.settings()
	return g.calls == 0 || g.calls <= s.opts.MaxCalls/2 && g.owed <= s.maxOwed/2
}

// charge counts c, which the client has sent.
func (g *ledger) charge(c *call) {
	g.calls++
	g.owed += int64(c.charge.expected)
	c.charge.counted = true
}

// adopt counts a Call that another connection sent and this client will have answered. The
// other connection's ledger is closed.
func (g *ledger) adopt(expected int) {
	g.calls++
	g.owed += int64(expected)
}

// lend counts the memory that the Reply of c takes until the client has it, instead of the
// octets that were expected.
func (g *ledger) lend(c *call) {
	memory := c.reply.memory
	g.owed += int64(memory - c.charge.expected)
	g.held += int64(memory)
	c.charge.expected, c.charge.lent = memory, true
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

// settle counts c no longer.
func (g *ledger) settle(c *call) {
	if c.charge.slowStart {
		c.up.admission.dropped(c)
	}
	if !c.charge.counted {
		return
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
// less since the previous round than lay there for it then, and otherwise 0.
func (g *ledger) slow(round uint32) int64 {
	was := g.seen
	g.seen = snapshot{round, g.held, g.taken}
	if was.round != round-1 || g.taken-was.taken >= was.held {
		return 0
	}
	return g.held
}
