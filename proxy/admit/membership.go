package admit

import (
	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// A membership is a client's place in a tenant. It belongs to the client's loop.
type membership struct {
	tenant  *Tenant        // nil for a client that was in a tenant and is in none now
	address *tenantAddress // at tenant
	rates   gates.Limited  // of the tenant

	// What the client has in the quotas.
	calls   int
	octets  int64
	partial [blockKinds]int64
}

// followRates makes the tenant's rate limits in force those of the client, which is one of h.
func (m *membership) followRates(h crowd.Host) {
	var r *gates.Rates
	if m.tenant != nil {
		r = m.tenant.rates.Load()
	}
	m.rates.Follow(r, h)
}

// leave ends the membership of w. What m counts stays counted.
func (m *membership) leave(w *gates.Waiter) {
	m.rates.Follow(nil, w.Host())
	if m.tenant != nil {
		m.tenant.leave(m.address, w)
		w.TakeTurns()
		m.serve() // w may have had a turn, or have been called, and has no use for it any more
	}
}

// charge adds to both quotas, and not to what the client has in them.
func (m *membership) charge(calls int, octets int64) {
	if m.tenant != nil {
		m.address.quota.add(calls, octets)
		m.tenant.quota.add(calls, octets)
	}
}

// arrive adds a block of size octets, in which a Call begins to arrive, to both quotas and to what the client has in
// them. A negative size takes one away.
func (m *membership) arrive(k blockKind, size int64) {
	m.partial[k] += size
	m.chargePartial(k, size)
}

func (m *membership) chargePartial(k blockKind, size int64) {
	if m.tenant != nil {
		m.address.quota.partial[k].Add(size)
		m.tenant.quota.partial[k].Add(size)
	}
}

// countAll adds all that the client has to both quotas, or takes it away if sign is -1.
func (m *membership) countAll(sign int64) {
	m.charge(int(sign)*m.calls, sign*m.octets)
	for k, size := range m.partial {
		m.chargePartial(blockKind(k), sign*size)
	}
}

// serve admits others after something was released.
func (m *membership) serve() {
	t := m.tenant
	if t == nil {
		return
	}
	m.address.quota.Serve()
	t.quota.Serve()
	t.serveLine()
	if m.address.clients.Load() == 0 {
		t.mu.Lock()
		t.forget(m.address)
		t.mu.Unlock()
	}
}

// enter reports whether another Call of w may begin. Otherwise w waits at a gate.
func (m *membership) enter(w *gates.Waiter) bool {
	if m.tenant == nil {
		return true
	}
	if m.address.quota.admits(w) && m.tenant.quota.admits(w) {
		w.TakeTurns()
		return true
	}
	m.giveTurns(w)
	return false
}

// giveTurns passes turns on that w has not used.
func (m *membership) giveTurns(w *gates.Waiter) {
	turns := w.TakeTurns()
	if turns&(1<<gates.GateTenantAddress) != 0 {
		m.address.quota.Serve()
	}
	if turns&(1<<gates.GateTenant) != 0 {
		m.tenant.quota.Serve()
	}
}

// begin counts a Call, which has begun and takes octets of memory.
func (m *membership) begin(c *Charge, octets int64) {
	c.shared = true
	m.count(1, octets)
}

// count adds to both quotas, and to what the client has in them.
func (m *membership) count(calls int, octets int64) {
	m.calls += calls
	m.octets += octets
	m.charge(calls, octets)
}

// lend counts more octets for a Reply than were expected, or fewer.
func (m *membership) lend(c *Charge, more int) {
	if c.shared && more != 0 {
		m.count(0, int64(more))
		if more < 0 {
			m.serve()
		}
	}
}

// settle ends the count of a Call that takes octets of memory.
func (m *membership) settle(c *Charge, octets int64) {
	if c.shared {
		c.shared = false
		m.count(-1, -octets)
		m.serve()
	}
}

// fits reports whether the client may have a block of size octets for an incomplete Call. Any goroutine.
func (m *membership) fits(size int64) bool {
	return m.tenant == nil || m.tenant.fits(m.address, size)
}

// arriving counts a block of size octets in which a Call begins to arrive.
func (m *membership) arriving(size int64) { m.arrive(partialKind(size), size) }

// arrived ends the count of a block of size octets: the Call has come whole, or never will.
func (m *membership) arrived(size int64) {
	k := partialKind(size)
	if size = min(size, m.partial[k]); size > 0 { // it may have been leased before the client had a tenant
		m.arrive(k, -size)
		m.serve()
	}
}
