package admit

import (
	"net/netip"

	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// A Client is the record that a client connection carries. It counts the client's Calls under way and the octets of the
// Replies that the client is owed, and knows where the client waits. It belongs to the client's loop.
type Client struct {
	starter
	Weight int // the client's share, relative to other clients

	// Calls under way, and their Replies.
	owed  int64 // octets that Replies to come are expected to have, plus held
	held  int64 // octets of memory of the Replies that came and that the client does not have yet
	taken int64 // octets of memory that all Replies took which the client has received
	seen  snapshot
	sends *senderState // nil for a client that has never held more than a small block, and has not waited

	Pauses gates.Pauses // for how long it was not read from
	calls  int32        // Calls read and not settled
	large  int32        // about the most octets of memory that a Reply without a bound took lately

	full   uint16        // what over has returned, as long as low has not been true since: Fill
	round  uint32        // of seen
	rates  gates.Limited // of the listener
	member *membership   // nil for a client that was never in a tenant
}

// Bounds are how much one client may have under way.
type Bounds struct {
	Calls   int   // Calls read and not settled
	Replies int64 // octets of Replies that it may be owed
}

// A snapshot is what SlowReaders saw of a client when it looked last.
type snapshot struct{ held, taken int64 }

// Open begins the record of conn, a client of h whose listener has the limits r.
func (g *Client) Open(conn gates.Conn, h *Host, r *gates.Rates) {
	g.waiter, g.host = gates.MakeWaiter(conn, h.id), h
	g.rates.Follow(r, h.id)
}

// Close ends what limits count for a client that has gone.
func (g *Client) Close() {
	g.rates.Follow(nil, g.waiter.Host())
	if m := g.member; m != nil {
		m.leave(&g.waiter)
	}
	g.leaveSlowStart()
}

// Conn is the connection that Open was told of.
func (g *Client) Conn() gates.Conn { return g.waiter.Conn() }

// Host is the client's.
func (g *Client) Host() *Host { return g.host }

// EnterSlowStart counts for a the Call of c, which the client has sent. Its procedure is 0 if it needs no memory. The
// client waits if there is no room for another Call.
func (g *Client) EnterSlowStart(a *SlowStart, c *Charge, procedure uint32, cost int) {
	a.enter(c, procedure, cost, &g.starter)
}

// ArriveAt makes the client wait if a has no room for its first Call, which waits to be read.
func (g *Client) ArriveAt(a *SlowStart) { a.arrive(&g.starter) }

// FollowRates makes r the limits of the client's listener.
func (g *Client) FollowRates(r *gates.Rates) { g.rates.Follow(r, g.waiter.Host()) }

// Enroll makes a client at a, which is new to t, a member of t, or returns why t may not have it.
func (g *Client) Enroll(t *Tenant, a netip.Addr) (why TenantRefusal, err error) {
	at, why, err := t.join(a, false)
	if err == nil {
		g.move(t, at)
	}
	return why, err
}

// FollowTenant makes a connected client at a a member of t, which is nil for none. A client without a tenant that
// leaves needs none any more.
func (g *Client) FollowTenant(t *Tenant, a netip.Addr, leaves bool) {
	switch old := g.Tenant(); {
	case old == nil && (t == nil || leaves), g.waiter.Gone():
		return // no tenant refuses it any more, or it has ended
	case old == t:
		g.member.followRates(g.waiter.Host())
		return
	}
	var at *tenantAddress
	if t != nil {
		at, _, _ = t.join(a, true)
	}
	g.move(t, at)
}

// Tenant returns the tenant of the client, or nil.
func (g *Client) Tenant() *Tenant {
	if g.member == nil {
		return nil
	}
	return g.member.tenant
}

// MayBegin reports whether another Call of the client may begin as far as its tenant is concerned. Otherwise the client
// waits at a gate.
func (g *Client) MayBegin() bool { return g.member == nil || g.member.enter(&g.waiter) }

// move makes the client a member of t, where at is its address. Both are nil for no tenant. What the client has under
// way moves with it.
func (g *Client) move(t *Tenant, at *tenantAddress) {
	var old membership
	if g.member != nil {
		old = *g.member
	}
	m := &membership{tenant: t, address: at, calls: old.calls, octets: old.octets, partial: old.partial}
	g.member = m
	m.followRates(g.waiter.Host())
	m.countAll(1)
	old.countAll(-1)
	waits := g.waiter.Shut()&gates.TenantGates != 0
	g.waiter.LeaveGates(gates.TenantGates)
	old.leave(&g.waiter)
	if waits {
		g.waiter.Conn().Resume()
	}
}

// Idle reports whether no Call of the client is under way.
func (g *Client) Idle() bool { return g.calls == 0 }

// UnderWay is how many Calls of the client are.
func (g *Client) UnderWay() int { return int(g.calls) }

// Unread is how many octets of memory the Replies take that the client does not have yet.
func (g *Client) Unread() int64 { return g.held }

// LargeReply is about the most octets of memory that a Reply without a bound took lately.
func (g *Client) LargeReply() int { return int(g.large) }

// AtGate reports whether the client waits at a gate.
func (g *Client) AtGate() bool { return g.waiter.Shut() != 0 }

// Reasons are those for which the next Call may not begin, a bit for each Reason.
func (g *Client) Reasons(most Bounds) uint16 { return g.waiter.Shut() | g.over(most) }

// LastingReasons are those for which the bridge does not read from the client. A client that has had as much under way
// as it may goes on when it has much less: fill.
func (g *Client) LastingReasons(most Bounds) uint16 {
	if g.full != 0 && g.low(most) {
		g.full = 0
	}
	return g.waiter.Shut() | g.full
}

// Waits reports whether LastingReasons may have a reason.
func (g *Client) Waits() bool { return g.waiter.Shut()|g.full != 0 }

// Fill notes that the client has as much under way as it may, if that is so: a Call has come, or a Reply has turned out
// longer than was expected.
func (g *Client) Fill(most Bounds) {
	if g.full == 0 {
		g.full = g.over(most)
	}
}

// over returns the bit of a Reason if the client has as much under way as it may, and otherwise 0: one
// greedy client must not fill the memory that the Replies to all the others need.
func (g *Client) over(most Bounds) uint16 {
	switch {
	case int(g.calls) >= most.Calls:
		return 1 << gates.WaitCalls
	case g.owed >= most.Replies:
		return 1 << gates.WaitReplies
	}
	return 0
}

// low reports whether a client that was over may send Calls again. It has to be well below the
// limits first.
func (g *Client) low(most Bounds) bool {
	return g.calls == 0 || int(g.calls) <= most.Calls/2 && g.owed <= most.Replies/2
}

// Limited reports whether a rate limits the client.
func (g *Client) Limited() bool {
	return g.rates.Any() || g.member != nil && g.member.rates.Any()
}

// ChargeCall charges a Call of n octets to the rate limits, and makes the client wait if the next Call may not come
// yet.
func (g *Client) ChargeCall(now int64, n int) {
	g.rates.ChargeCall(now, n, &g.waiter)
	if m := g.member; m != nil {
		m.rates.ChargeCall(now, n, &g.waiter)
	}
}

// ChargeRule charges a Call of n octets to the rate s of a rule, and makes the client wait if its next Call may not come
// yet.
func (g *Client) ChargeRule(now int64, n int, s *gates.SharedRate) { s.ChargeCall(now, n, &g.waiter) }

// ChargeReply charges a Reply of n octets to the rate limits.
func (g *Client) ChargeReply(now int64, n int) {
	g.rates.ChargeReply(now, n)
	if m := g.member; m != nil {
		m.rates.ChargeReply(now, n)
	}
}

// Charge counts a Call of size octets, which the client has sent.
func (g *Client) Charge(c *Charge, size int32) {
	g.calls++
	g.owed += int64(c.Expected)
	c.counted = true
	if m := g.member; m != nil {
		m.begin(c, c.memory(size))
	}
}

// Lend counts the memory that a Reply takes until the client has it, instead of the octets that were expected.
// bounded says that they were known to be enough.
func (g *Client) Lend(c *Charge, memory int, bounded bool) {
	more := memory - c.Expected
	g.owed += int64(more)
	g.held += int64(memory)
	c.Expected, c.lent = memory, true
	if m := g.member; m != nil {
		m.lend(c, more)
	}
	if bounded {
		return
	}
	if n := int32(memory); n > g.large {
		g.large = n
	} else {
		g.large -= (g.large - n) / 64
	}
}

// Pass does what Lend and Settle do, for a Reply that the client's connection has copied.
func (g *Client) Pass(c *Charge, size int32, memory int, bounded bool) {
	if g.member != nil || !bounded {
		g.Lend(c, memory, bounded)
		g.Settle(c, size)
		return
	}
	g.calls--
	g.owed -= int64(c.Expected)
	g.taken += int64(memory)
	c.counted = false
}

// Settle ends what counts for a Call of size octets. The client has the Reply, or will never have it.
func (g *Client) Settle(c *Charge, size int32) {
	if !c.counted {
		return
	}
	if m := g.member; m != nil {
		m.settle(c, c.memory(size))
	}
	g.calls--
	g.owed -= int64(c.Expected)
	if c.lent {
		g.held -= int64(c.Expected)
		g.taken += int64(c.Expected)
	}
	c.counted, c.lent = false, false
}

// slow is how many octets of memory the client's Replies take, if the client has received
// less since the previous round than waited for it then, and otherwise 0.
func (g *Client) slow(round uint32) int64 {
	was, at := g.seen, g.round
	g.seen, g.round = snapshot{g.held, g.taken}, round
	if at != round-1 || g.taken-was.taken >= was.held {
		return 0
	}
	return g.held
}

// sender is what is kept of g. It is made at first use, by the client's loop: idle clients have none.
func (g *Client) sender() *senderState {
	if g.sends == nil {
		g.sends = &senderState{}
	}
	return g.sends
}
