package admit

import (
	"sync/atomic"
)

// A membership is a client connection's place in a tenant. It belongs to the client's loop, except for what
// says otherwise. A client that comes to belong to another tenant gets another membership.
type membership struct {
	client  *waiter        // constant, as the next two
	tenant  *Tenant        // nil for a client that was in a tenant and is in none now
	address *tenantAddress // at tenant
	left    atomic.Bool    // the client has ended, or has another membership

	rates rateLimited // of the tenant

	turns   uint16  // the quotas that have admitted the client and whose turn it has not used yet, a bit for each Reason
	tickets tickets // for the gates of the tenant

	// What the client has in the quotas.
	calls   int
	octets  int64
	partial [blockKinds]int64
}

// newMembership makes a membership of c in t, where a is its address. It has nothing under way yet.
func newMembership(c *waiter, t *Tenant, a *tenantAddress) *membership {
	m := &membership{client: c, tenant: t, address: a}
	m.followRates()
	return m
}

// followRates makes the tenant's rate limits in force those of the client.
func (m *membership) followRates() {
	var r *Rates
	if m.tenant != nil {
		r = m.tenant.rates.Load()
	}
	m.rates.follow(r, m.client.host)
}

// leave ends the membership of a connection. What it has under way stays counted.
func (m *membership) leave() {
	m.left.Store(true)
	m.rates.follow(nil, m.client.host)
	if m.tenant != nil {
		m.tenant.leave(m.address, m.client)
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
	if m.left.Load() {
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
	if m.address.quota.admits(m, turns&(1<<gateTenantAddress) != 0) &&
		m.tenant.quota.admits(m, turns&(1<<gateTenant) != 0) {
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

// WeightOf returns the weight that the tenant gives its addresses, or else other.
func (t *Tenant) WeightOf(other int) int {
	if t != nil {
		if w := t.current.Load().Weight; w > 0 {
			return w
		}
	}
	return other
}

// waitAt is part of place.
func (m *membership) waitAt(k Reason, at *gate) bool { return m.client.queue(k, at, &m.tickets, m) }

// connection is part of ticketHolder.
func (m *membership) connection() Conn { return m.client.conn }

// Gone is part of ticketHolder.
func (m *membership) Gone() bool { return m.left.Load() || m.client.Gone() }

// admitted is part of ticketHolder. A client that has ended, or has another tenant, passes its turn on. Rates have no
// turns: their buckets admit others at the next tick.
func (m *membership) admitted(k Reason) {
	if k == gateTenantAddress || k == gateTenant {
		m.turns |= 1 << k
	}
	if m.Gone() {
		m.giveTurns()
		return
	}
	m.client.shut &^= 1 << k
	m.client.conn.Resume()
	m.giveTurns() // of a client that needs none any more
}

// Memory and Calls

// begin counts a Call, which has begun and takes octets of memory.
func (m *membership) begin(c *Charge, octets int64) {
	c.shared = true
	m.calls++
	m.octets += octets
	m.charge(1, octets)
}

// lend counts more octets for a Reply than were expected, or fewer.
func (m *membership) lend(c *Charge, more int) {
	if c.shared && more != 0 {
		m.octets += int64(more)
		m.charge(0, int64(more))
		if more < 0 {
			m.serve()
		}
	}
}

// settle ends the count of a Call that takes octets of memory.
func (m *membership) settle(c *Charge, octets int64) {
	if !c.shared {
		return
	}
	c.shared = false
	m.calls--
	m.octets -= octets
	m.charge(-1, -octets)
	m.serve()
}

// fits reports whether the client may have a block of size octets for an incomplete Call. Any goroutine.
func (m *membership) fits(size int64) bool {
	return m.tenant == nil || m.tenant.fits(m.address, size)
}

// wait calls call once, when there may be a block of n octets for the client.
func (m *membership) wait(n int, call func()) { m.tenant.wait(m.client, m.address, n, call) }

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

var _ ticketHolder = (*membership)(nil)
