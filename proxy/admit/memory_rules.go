package admit

import (
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// A Memory divides the memory for Calls among hosts. It costs a client nothing to announce a
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
type Memory struct {
	account *regmem.Account // constant, as the next two
	slow    slowSenders
	waited  *metrics.Counter

	scarce atomic.Bool // more than half was in use when admit looked last; every Call reads it

	_ [64]byte // keeps what changes with each bulk block off the cache line

	bulk     atomic.Int64             // octets in bulk blocks, and in those that are kept for turns
	unproven [blockKinds]atomic.Int64 // octets for incomplete Calls of hosts that are not proven, and for their turns
	waiters  atomic.Int32             // clients in the line

	mu      sync.Mutex // guards the rest, and hostMemory; a leaf
	line    []*Host    // hosts with waiters, the next one first
	turns   []turn
	pledged int64 // octets kept for turns
	ticking bool
	tick    int
	closed  [blockKinds]bool // no client may overtake those in the line that wait for such a block
}

// Counts are the octets that count for clients: in bulk blocks, of hosts that are not proven, and of turns. All are 0
// when no client is left.
func (m *Memory) Counts() (bulk, unproven, pledged int64) {
	for k := range m.unproven {
		unproven += m.unproven[k].Load()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bulk.Load(), unproven, m.pledged
}

// A verdict says whether a host may have a block.
type verdict uint8

const (
	granted      verdict = iota
	noRoom               // others hold too much
	overItsPart          // the hosts that are not proven hold too much
	overItsShare         // the host itself holds too much
)

// judge says whether h may have a block of size octets. The caller holds m.mu.
func (m *Memory) judge(h *Host, size int64) verdict {
	limit := m.account.Limit()
	used, bulk := m.account.Taken()+m.pledged, m.bulk.Load()
	others, k := max(0, used-bulk), kindOf(size)
	scarce := used+size > limit/2
	if scarce && k != smallBlock && !h.proven(size) {
		most := limit / 4
		if k == bulkBlock {
			most = limit / 3
		}
		if n := m.unproven[k].Load(); n > 0 && n+size > most {
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
