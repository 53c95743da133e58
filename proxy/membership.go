package proxy

import "github.com/rdmabridge/rdmabridge/internal/regmem"

// A membership is a client connection's place in a tenant. It belongs to the client's loop, except for what
// says otherwise. A client that comes to belong to another tenant gets another membership.
type membership struct {
	f       *front         // constant, as the next two
	tenant  *tenant        // nil for a client that was in a tenant and is in none now
	address *tenantAddress // at tenant
	left    flag           // the client has ended, or has another membership

	rates   *rates    // of the tenant; nil for none
	buckets []*bucket // of rates, those that limit this client

	turns   uint16  // the quotas that have admitted the client and whose turn it has not used yet, a bit for each gateKind
	tickets tickets // for the gates of the tenant
	kept    *call   // a Call of a TCP client that was read and waits at a gate; nil for none

	// What the client has in the quotas.
	calls   int
	octets  int64
	partial [blockKinds]int64
}

// newMembership makes a membership of f in t, where a is its address. It has nothing under way yet.
func newMembership(f *front, t *tenant, a *tenantAddress) *membership {
	m := &membership{f: f, tenant: t, address: a}
	m.followRates()
	return m
}

// followRates makes the tenant's rate limits in force those of the client.
func (m *membership) followRates() {
	var r *rates
	if m.tenant != nil {
		r = m.tenant.rates.Load()
	}
	if r == m.rates {
		return
	}
	m.rates.release(m.buckets)
	m.rates, m.buckets = r, r.obtain(m.buckets[:0], m.f.ledger.addr())
}

// followTenant makes the client a member of the tenant that has it now.
func (g *ledger) followTenant() {
	f := g.front
	if f.tenantOpen {
		if f.tenantOpen = f.listener.tenantOpen(g.addr()); f.tenantOpen {
			return
		}
	}
	t := f.listener.p.tenantOf(g.addr(), f.identity)
	old := g.member
	switch {
	case old == nil && (t == nil || f.draining), old != nil && old.left.get():
		return // no tenant refuses it any more, or it has ended
	case old != nil && old.tenant == t:
		old.followRates()
		return
	}
	var a *tenantAddress
	if t != nil {
		a, _, _ = t.join(g.addr(), true)
	}
	g.move(t, a)
}

// move makes the client a member of t, where a is its address. Both are nil for no tenant.
func (g *ledger) move(t *tenant, a *tenantAddress) {
	old, m := g.member, newMembership(g.front, t, a)
	g.member = m
	if old != nil {
		m.kept, m.calls, m.octets, m.partial = old.kept, old.calls, old.octets, old.partial
		old.kept = nil
		old.charge(-old.calls, -old.octets)
		for k, size := range old.partial {
			old.addPartial(blockKind(k), -size)
		}
		old.leave()
		old.serve()
		g.shut &^= tenantGates // it does not wait at the old gates any more
	}
	m.charge(m.calls, m.octets)
	for k, size := range m.partial {
		m.addPartial(blockKind(k), size)
	}
	g.front.client.admit()
}

// leave ends the membership of a connection. What it has under way stays counted.
func (m *membership) leave() {
	m.left.set()
	m.rates.release(m.buckets)
	m.rates, m.buckets = nil, nil
	if m.tenant != nil {
		m.tenant.leave(m)
	}
	m.giveTurns()
	if m.tenant != nil {
		m.tenant.serveLine() // m may have been called, and have no use for it any more
	}
}

// charge adds to both quotas, and not to what the client has in them.
func (m *membership) charge(calls int, octets int64) {
	if m.tenant != nil {
		m.address.quota.add(calls, octets)
		m.tenant.quota.add(calls, octets)
	}
}

func (m *membership) addPartial(k blockKind, size int64) {
	if m.tenant != nil && size != 0 {
		m.address.quota.partial[k].Add(size)
		m.tenant.quota.partial[k].Add(size)
	}
}

// serve admits others after something was released.
func (m *membership) serve() {
	t := m.tenant
	if t == nil {
		return
	}
	m.address.quota.serve()
	t.quota.serve()
	if t.lined.Load() > 0 {
		t.serveLine()
	}
	if m.left.get() {
		t.mu.Lock()
		t.forget(m.address)
		t.mu.Unlock()
	}
}

// enter reports whether another Call of the client may begin. Otherwise the client waits at a gate.
func (m *membership) enter() bool {
	if m.tenant == nil {
		return true
	}
	turns := m.turns
	if m.address.quota.admits(m, turns&(1<<gateTenantAddress) != 0) && m.tenant.quota.admits(m, turns&(1<<gateTenant) != 0) {
		m.turns = 0
		return true
	}
	m.giveTurns()
	return false
}

// giveTurns passes turns on that the client has not used.
func (m *membership) giveTurns() {
	turns := m.turns
	m.turns = 0
	if turns&(1<<gateTenantAddress) != 0 {
		m.address.quota.serve()
	}
	if turns&(1<<gateTenant) != 0 {
		m.tenant.quota.serve()
	}
}

// weightOf returns the weight that the tenant gives its addresses, or else other.
func (t *tenant) weightOf(other int) int {
	if t != nil {
		if w := t.current.Load().Weight; w > 0 {
			return w
		}
	}
	return other
}

// gone is part of waitingClient.
func (m *membership) gone() bool { return m.left.get() || m.f.gone() }

// runOnLoop is part of waitingClient.
func (m *membership) runOnLoop(t *ticket) { m.f.runOnLoop(t) }

// close is part of waitingClient.
func (m *membership) close(reason error) { m.f.close(reason) }

// readOn is part of waitingClient. A client that has ended, or has another tenant, passes its turn on. Rates have no
// turns: their buckets admit others at the next tick.
func (m *membership) readOn(k gateKind) {
	if k == gateTenantAddress || k == gateTenant {
		m.turns |= 1 << k
	}
	if m.gone() {
		m.giveTurns()
		return
	}
	m.f.ledger.shut &^= 1 << k
	m.f.client.admit()
	m.giveTurns() // of a client that needs none any more
}

// Memory and Calls

// taken returns the octets of memory that c takes: its message, and its Reply, which is expected or there.
func (c *call) taken() int64 { return int64(regmem.BlockSize(int(c.size))) + int64(c.charge.expected) }

// begin counts c, which has begun.
func (m *membership) begin(c *call) {
	c.charge.shared = true
	octets := c.taken()
	m.calls++
	m.octets += octets
	m.charge(1, octets)
}

// lend counts more octets for a Reply than were expected, or fewer.
func (m *membership) lend(c *call, more int) {
	now := m.f.loop.Now()
	for _, b := range m.buckets {
		b.chargeReply(now, octets(c.reply.parts))
	}
	if c.charge.shared && more != 0 {
		m.octets += int64(more)
		m.charge(0, int64(more))
		if more < 0 {
			m.serve()
		}
	}
}

// settle ends the count of c.
func (m *membership) settle(c *call) {
	if !c.charge.shared {
		return
	}
	c.charge.shared = false
	octets := c.taken()
	m.calls--
	m.octets -= octets
	m.charge(-1, -octets)
	m.serve()
}

// chargeCall charges a Call of n octets to the rate limits.
func (m *membership) chargeCall(now int64, n int) {
	for _, b := range m.buckets {
		b.chargeCall(now, n, &m.f.ledger)
	}
}

// fits reports whether the client may have a block of size octets for an incomplete Call. Any goroutine.
func (m *membership) fits(size int64) bool {
	return m.tenant == nil || m.address.quota.fits(size) && m.tenant.quota.fits(size)
}

// arriving counts a block of size octets in which a Call begins to arrive.
func (m *membership) arriving(size int64) {
	k := partialKind(size)
	m.partial[k] += size
	m.addPartial(k, size)
}

// arrived ends the count of a block of size octets: the Call has come whole, or never will.
func (m *membership) arrived(size int64) {
	k := partialKind(size)
	size = min(size, m.partial[k]) // it may have been leased before the client had a tenant
	if size == 0 {
		return
	}
	m.partial[k] -= size
	m.addPartial(k, -size)
	m.serve()
}

var _ waitingClient = (*membership)(nil)
