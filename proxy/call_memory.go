package proxy

import (
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A blockKind is how much memory a lease takes. Each kind has room of its own that the others
// cannot use up, so that Calls of one kind do not wait for those of another.
type blockKind uint8

const (
	smallBlock blockKind = iota // most Calls; the beginning of every record
	midBlock                    // as much of a record as a Conn leases before octets have come
	bulkBlock                   // as much as a record announces; the data of a WRITE
	blockKinds
)

const (
	// tinyBlock is the longest block of the loops' stocks. It is counted only while memory is
	// scarce: most Calls are as short, and counting costs a cache line that loops share.
	tinyBlock = 2 << 10

	mostSmall = 16<<10 + 512
	mostMid   = 64<<10 + 4<<10
)

func kindOf(size int64) blockKind {
	switch {
	case size <= mostSmall:
		return smallBlock
	case size <= mostMid:
		return midBlock
	}
	return bulkBlock
}

// A callMemory divides the memory for Calls among hosts. It costs a client nothing to announce a
// Call: a record mark or a Read chunk of a few octets asks for megabytes, and the client need not
// send them. So the following rules hold once half of the memory is in use.
//
//   - A host gets no block while it holds more than would be left then, except for its first bulk
//     block. So a host leaves the others about as much as it takes.
//   - A host is proven for a block when it has sent as many octets before. Incomplete Calls of
//     hosts that are not proven hold at most a quarter of the memory in mid blocks and a third in
//     bulk blocks.
//   - Bulk blocks take at most seven eighths of the memory, and so do small and mid blocks together.
//
// A client that gets none waits in a line: memory_line.go. While the line waits for room, and not
// for the clients' own shares, slowSenders closes the clients that send too slowly.
//
// It is safe for concurrent use.
type callMemory struct {
	account *regmem.Account // constant, as the next two
	slow    *slowSenders
	waited  *metrics.Counter

	scarce atomic.Bool // more than half was in use when admit looked last; every Call reads it

	_ [64]byte // keeps what changes with each bulk block off the cache line

	bulk     atomic.Int64             // octets in bulk blocks
	unproven [blockKinds]atomic.Int64 // octets for incomplete Calls of hosts that are not proven
	waiters  atomic.Int32             // clients in the line

	mu          sync.Mutex // guards the rest, and hostMemory; a leaf
	line        []*host    // hosts with waiters, the next one first
	turns       []turn
	pledged     int64 // octets kept for turns
	pledgedBulk int64
	ticking     bool
	tick        int

	pledgedUnproven [blockKinds]int64
	closed          [blockKinds]bool // no client may overtake those in the line that wait for such a block
}

func newCallMemory(a *regmem.Account, p *Proxy) *callMemory {
	m := &callMemory{account: a, slow: &slowSenders{p: p}}
	p.hosts.calls = m
	m.waited = p.metrics.Counter(metrics.CallMemoryWaits)
	p.metrics.GaugeFunc(metrics.CallMemoryWaitingConnections, func() float64 { return float64(m.waiters.Load()) })
	m.slow.closed = p.metrics.Counter(metrics.ClosedClients, "slow_sender")
	return m
}

// lease lends n octets for a Call of f. It fails with regmem.ErrBudget when f has to wait.
func (m *callMemory) lease(f *front, n int) (*regmem.Lease, error) {
	a := f.loop.calls
	if s := f.sends.p; s != nil {
		s.noBlock = false
	}
	if n <= tinyBlock && !m.scarce.Load() {
		return m.borrow(f, n)
	}
	size := int64(regmem.BlockSize(n))
	if size == 0 || size > a.Limit() {
		return a.Lease(n) // it never succeeds, and the error says so
	}
	if t := f.ledger.member; t != nil && size > tinyBlock && !t.fits(size) {
		return nil, regmem.ErrBudget
	}
	if !m.admit(f, size) {
		m.waited.Inc()
		return nil, regmem.ErrBudget
	}
	l, err := m.borrow(f, n)
	if err != nil {
		m.waited.Inc()
		return nil, err
	}
	if size > tinyBlock {
		m.count(f, size)
	}
	return l, nil
}

// borrow leases n octets that the rules permit f to have. That can fail although there are enough free octets, if
// there are not as many in a row.
func (m *callMemory) borrow(f *front, n int) (*regmem.Lease, error) {
	a := f.loop.calls
	l, err := a.Lease(n)
	if err != nil && a.Taken()+int64(regmem.BlockSize(n)) <= a.Limit() {
		f.sends.get().noBlock = true
	}
	return l, err
}

// count counts a block of more than tinyBlock octets, in which a Call of f begins to arrive.
func (m *callMemory) count(f *front, size int64) {
	h, k := f.ledger.host, kindOf(size)
	h.take(size)
	if t := f.ledger.member; t != nil {
		t.arriving(size)
	}
	if k == bulkBlock {
		m.bulk.Add(size)
	}
	if k != smallBlock && !h.proven(size) {
		f.sends.get().unproven[k] += size
		m.unproven[k].Add(size)
	}
}

// arrived notes that the Call in a block of size octets has come whole. It returns the size to call
// give with when the block has been released, or 0 if the block is not counted.
func (m *callMemory) arrived(f *front, size int64) int64 {
	if size > tinyBlock {
		m.settled(f, size)
		if t := f.ledger.member; t != nil {
			t.arrived(size)
		}
		if size > mostSmall {
			f.ledger.host.memory.sent.Add(size)
		}
		return size
	}
	if m.scarce.Load() {
		f.ledger.host.take(size)
		return size
	}
	return 0
}

// settled ends the count of a block of size octets as one with an incomplete Call.
func (m *callMemory) settled(f *front, size int64) {
	if f.sends.p == nil {
		return
	}
	k := kindOf(size)
	n := &f.sends.p.unproven[k]
	size = min(size, *n)
	*n -= size
	m.unproven[k].Add(-size)
}

// give counts a block of size octets, which has been released, as free.
func (m *callMemory) give(h *host, size int64) {
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

// returned releases l, in which a Call of f did not arrive whole.
func (m *callMemory) returned(f *front, l *regmem.Lease) {
	size := int64(l.Cap())
	f.loop.calls.Release(l)
	if size > tinyBlock {
		m.settled(f, size)
		m.give(f.ledger.host, size)
		if t := f.ledger.member; t != nil {
			t.arrived(size)
		}
	}
}

// left does what settled does, for all blocks of f, which has ended.
func (m *callMemory) left(f *front) {
	if f.sends.p == nil {
		return
	}
	for k, size := range f.sends.p.unproven {
		f.sends.p.unproven[k] = 0
		m.unproven[k].Add(-size)
	}
}

// A verdict says whether a host may have a block.
type verdict uint8

const (
	granted      verdict = iota
	noRoom               // others hold too much
	overItsPart          // the hosts that are not proven hold too much
	overItsShare         // the host itself holds too much
)

// admit reports whether f may have a block of size octets now.
func (m *callMemory) admit(f *front, size int64) bool {
	plenty := m.account.Taken()+size <= m.account.Limit()/2
	if m.scarce.Load() == plenty {
		m.scarce.Store(!plenty)
	}
	if plenty && m.waiters.Load() == 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.sends.p != nil && f.sends.p.turn >= size {
		m.endTurn(f)
		return true
	}
	if k := kindOf(size); k == bulkBlock && m.closed[k] && len(m.line) > 0 {
		return false
	}
	return m.judge(f.ledger.host, size) == granted
}

// judge says whether h may have a block of size octets. The caller holds m.mu.
func (m *callMemory) judge(h *host, size int64) verdict {
	limit := m.account.Limit()
	used, bulk := m.account.Taken()+m.pledged, m.bulk.Load()+m.pledgedBulk
	others, k := max(0, used-bulk), kindOf(size)
	scarce := used+size > limit/2
	if scarce && k != smallBlock && !h.proven(size) {
		most := limit / 4
		if k == bulkBlock {
			most = limit / 3
		}
		if n := m.unproven[k].Load() + m.pledgedUnproven[k]; n > 0 && n+size > most {
			return overItsPart // not noRoom, for which the hosts behind it would have to wait
		}
	}
	held := h.memory.held.Load()
	if l := h.memory.line; l != nil {
		held += l.pledged
	}
	if scarce && held > max(0, limit-used-size) && (k != bulkBlock || h.memory.bulk.Load() > 0) {
		return overItsShare
	}
	switch {
	case used+size > limit,
		k == bulkBlock && bulk > 0 && bulk+size > limit/8*7,
		k != bulkBlock && others > 0 && others+size > limit/8*7:
		return noRoom
	}
	return granted
}
