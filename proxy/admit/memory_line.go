package admit

import (
	"slices"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
)

const (
	// turnTicks is how many ticks memory is kept for a client that was called.
	turnTicks = 2
	// overtakeTicks is how many ticks a client waits before others that need less may no longer
	// overtake it: by then slow senders have made room for it, if there are any.
	overtakeTicks = 20
)

// A turn is memory that is kept for a client whose turn has come, until the client leases it.
type turn struct {
	s      *senderState
	host   *Host
	expiry int // value of Memory.tick from which on it is void
}

// Wait calls call once, when there may be a block for n octets for g. It need not call a
// connection that has ended meanwhile.
func (m *Memory) Wait(g *Client, n int, call func()) {
	if t := g.member; t != nil && !t.fits(int64(regmem.BlockSize(n))) {
		t.tenant.wait(&g.waiter, t.address, n, call)
		return
	}
	// If there was no block, serve would permit the same one at once, and the client would ask without end: it waits for
	// the next look, or for memory that is given back.
	wakes := !g.sender().noBlock
	m.mu.Lock()
	h := g.host.memory.line
	if h == nil {
		h = &hostLine{}
		g.host.memory.line = h
	}
	h.waiting = append(h.waiting, &memoryWaiter{
		conn: g.waiter.Conn(), s: g.sender(), host: g.host, size: int64(regmem.BlockSize(n)), call: call, tick: m.tick,
	})
	m.waiters.Add(1)
	if !h.listed {
		h.listed = true
		m.line = append(m.line, g.host)
	}
	if !m.ticking {
		m.ticking = true
		time.AfterFunc(memoryTick, m.look)
	}
	m.mu.Unlock()
	if wakes {
		m.wake() // memory may have been released since the lease failed
	}
}

// wake calls the clients in the line for which there is memory.
func (m *Memory) wake() {
	m.mu.Lock()
	calls, _ := m.serve()
	m.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// serve gives turns to the clients in the line for which there is memory: to one of each host
// after the other. It returns their functions to call, and how many octets those would need that
// wait for others. The caller holds m.mu.
func (m *Memory) serve() (calls []func(), short int64) {
	for again := true; again; {
		short = 0
		m.closed = [blockKinds]bool{}
		served := make([]*Host, 0, 8)
		m.line = slices.DeleteFunc(m.line, func(h *Host) bool {
			w := m.head(h)
			if w == nil {
				h.memory.line.listed = false
				return true
			}
			k := kindOf(w.size)
			v := noRoom
			if !m.closed[k] {
				v = m.judge(h, w.size)
			}
			switch v {
			case granted:
				h.memory.line.waiting = h.memory.line.waiting[1:]
				m.waiters.Add(-1)
				m.beginTurn(w)
				calls = append(calls, w.call)
				served = append(served, h)
				return true
			case noRoom:
				m.closed[k] = m.closed[k] || m.tick-w.tick >= overtakeTicks
				short += w.size
			case overItsPart:
				short += w.size
			}
			return false
		})
		m.line = append(m.line, served...)
		again = len(served) > 0
	}
	return calls, short
}

// head returns the first waiter of h whose connection has not ended, or nil.
func (m *Memory) head(h *Host) *memoryWaiter {
	q := &h.memory.line.waiting
	for len(*q) > 0 && (*q)[0].conn.Gone() {
		*q = (*q)[1:]
		m.waiters.Add(-1)
	}
	if len(*q) == 0 {
		*q = nil
		return nil
	}
	return (*q)[0]
}

// beginTurn keeps memory for w, which leaves the line.
func (m *Memory) beginTurn(w *memoryWaiter) {
	m.endTurn(w.s, w.host)
	s := w.s
	s.turn, s.stranger = w.size, !w.host.proven(w.size)
	m.pledge(s, w.host, w.size)
	m.turns = append(m.turns, turn{w.s, w.host, m.tick + turnTicks})
}

// pledge counts size octets that are kept for s, a client of h, as if they were leased.
func (m *Memory) pledge(s *senderState, h *Host, size int64) {
	k := kindOf(max(size, -size))
	if s.stranger {
		m.unproven[k].Add(size)
	}
	if k == bulkBlock {
		m.bulk.Add(size)
	}
	h.memory.line.pledged += size
	m.pledged += size
}

// endTurn ends the turn of s, a client of h, if it has one.
func (m *Memory) endTurn(s *senderState, h *Host) {
	size := s.turn
	if size == 0 {
		return
	}
	m.pledge(s, h, -size)
	s.turn, s.stranger = 0, false
	m.turns = slices.DeleteFunc(m.turns, func(t turn) bool { return t.s == s })
}

// look ends turns that were not used, serves the line, and has slow senders closed while clients
// wait for others. While there are clients in the line, it has the loops give back their free blocks each time.
func (m *Memory) look() {
	m.mu.Lock()
	m.tick++
	for len(m.turns) > 0 && m.turns[0].expiry <= m.tick {
		m.endTurn(m.turns[0].s, m.turns[0].host)
	}
	calls, short := m.serve()
	m.ticking = len(m.line) > 0 || len(m.turns) > 0
	waits, again, round := len(m.line) > 0, m.ticking, m.tick/slowTicks
	weigh := short > 0 && m.tick%slowTicks == 0
	m.mu.Unlock()
	if waits {
		m.account.EmptyStocks()
	}
	for _, call := range calls {
		call()
	}
	if weigh {
		m.slow.weigh(round, short)
	}
	if again {
		time.AfterFunc(memoryTick, m.look)
	}
}
