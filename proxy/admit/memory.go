package admit

import (
	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// NewMemory returns what divides a among hosts. It closes clients that send too slowly, and logs that to log.
func NewMemory(a *regmem.Account, m *metrics.Registry, clients Population, log *zerolog.Logger) *Memory {
	c := &Memory{account: a, waited: m.Counter(metrics.CallMemoryWaits)}
	c.slow = slowSenders{shedder{
		clients: clients, log: log, closed: m.Counter(metrics.ClosedClients, "slow_sender"), reason: "slow_sender", err: errSlowSender,
		text: "no memory is left for Calls and the client sends its own too slowly; connection closed",
	}}
	m.GaugeFunc(metrics.CallMemoryWaitingConnections, func() float64 { return float64(c.waiters.Load()) })
	return c
}

// Lease lends n octets of a for a Call of g. It fails with regmem.ErrBudget when g has to wait. Here and below, a is
// the account with the stock of the client's loop.
func (m *Memory) Lease(g *Client, a *regmem.Account, n int) (*regmem.Lease, error) {
	if s := g.sends; s != nil {
		s.noBlock = false
	}
	if n <= TinyBlock && !m.scarce.Load() {
		return m.borrow(g, a, n)
	}
	size := int64(regmem.BlockSize(n))
	if size == 0 || size > a.Limit() {
		return a.Lease(n) // it never succeeds, and the error says so
	}
	if t := g.member; t != nil && size > TinyBlock && !t.fits(size) {
		return nil, regmem.ErrBudget
	}
	if !m.admit(g, size) {
		m.waited.Inc()
		return nil, regmem.ErrBudget
	}
	l, err := m.borrow(g, a, n)
	if err != nil {
		m.waited.Inc()
		return nil, err
	}
	if size > TinyBlock {
		m.count(g, size)
	}
	return l, nil
}

// LeaseTiny does what Lease does for a Call of up to TinyBlock octets that nothing counts, in a block that the loop has in
// stock. Otherwise it returns nil, and the caller calls Lease.
func (m *Memory) LeaseTiny(g *Client, a *regmem.Account, n int) *regmem.Lease {
	if n > TinyBlock || m.scarce.Load() {
		return nil
	}
	l := a.Stocked(n)
	if s := g.sends; s != nil && l != nil {
		s.noBlock = false
	}
	return l
}

// borrow leases n octets that the rules permit g to have. That can fail although there are enough free octets, if
// there are not as many in a row.
func (m *Memory) borrow(g *Client, a *regmem.Account, n int) (*regmem.Lease, error) {
	l, err := a.Lease(n)
	if err != nil && a.Taken()+int64(regmem.BlockSize(n)) <= a.Limit() {
		g.sender().noBlock = true
	}
	return l, err
}

// count counts a block of more than tinyBlock octets, in which a Call of g begins to arrive.
func (m *Memory) count(g *Client, size int64) {
	h, k := g.host, kindOf(size)
	h.take(size)
	if t := g.member; t != nil {
		t.arriving(size)
	}
	if k == bulkBlock {
		m.bulk.Add(size)
	}
	if k != smallBlock && !h.proven(size) {
		g.sender().unproven[k] += size
		m.unproven[k].Add(size)
	}
}

// Arrived notes that the Call in a block of size octets has come whole. It returns the size to call
// give with when the block has been released, or 0 if the block is not counted.
func (m *Memory) Arrived(g *Client, size int64) int64 {
	if size > TinyBlock {
		m.settled(g, size)
		if t := g.member; t != nil {
			t.arrived(size)
		}
		if size > mostSmall {
			g.host.memory.sent.Add(size)
		}
		return size
	}
	if m.scarce.Load() {
		g.host.take(size)
		return size
	}
	return 0
}

// settled ends the count of a block of size octets as one with an incomplete Call.
func (m *Memory) settled(g *Client, size int64) {
	if g.sends == nil {
		return
	}
	k := kindOf(size)
	n := &g.sends.unproven[k]
	size = min(size, *n)
	*n -= size
	m.unproven[k].Add(-size)
}

// Give counts a block of size octets, which has been released, as free.
func (m *Memory) Give(h *Host, size int64) {
	if size == 0 {
		return
	}
	if kindOf(size) == bulkBlock {
		m.bulk.Add(-size)
	}
	h.give(size)
	if m.waiters.Load() > 0 {
		m.wake()
	}
}

// Hold counts the message of a Call of h, which has come whole, in a block of size octets; see arrived.
func (c *Charge) Hold(h *Host, size int64) { c.host, c.held = h, size }

// Release counts the memory of the message as free.
func (m *Memory) Release(c *Charge) {
	if c.held != 0 {
		m.Give(c.host, c.held)
		c.held = 0
	}
}

// Returned releases l, in which a Call of g did not arrive whole.
func (m *Memory) Returned(g *Client, a *regmem.Account, l *regmem.Lease) {
	size := int64(l.Size())
	a.Release(l)
	if size > TinyBlock {
		m.settled(g, size)
		m.Give(g.host, size)
		if t := g.member; t != nil {
			t.arrived(size)
		}
	}
}

// Left does what settled does, for all blocks of g, which has ended.
func (m *Memory) Left(g *Client) {
	if g.sends == nil {
		return
	}
	for k, size := range g.sends.unproven {
		g.sends.unproven[k] = 0
		m.unproven[k].Add(-size)
	}
}

// admit reports whether g may have a block of size octets now.
func (m *Memory) admit(g *Client, size int64) bool {
	plenty := m.account.Taken()+size <= m.account.Limit()/2
	if m.scarce.Load() == plenty {
		m.scarce.Store(!plenty)
	}
	if plenty && m.waiters.Load() == 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.sends != nil && g.sends.turn >= size {
		m.endTurn(g.sends, g.host)
		return true
	}
	if k := kindOf(size); k == bulkBlock && m.closed[k] && len(m.line) > 0 {
		return false
	}
	return m.judge(g.host, size) == granted
}
