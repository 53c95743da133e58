package admit

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/pool"
)

// A Host is what the bridge counts as one client when it divides something among clients: all
// connections from one IPv4 address, or from one IPv6 /64. A host that opens more connections
// gains nothing by it.
type Host struct {
	id     crowd.Host  // constant
	all    *Hosts      // constant
	shares *hostShare  // at the pools where the host had Calls, linked by next; guarded by hosts.mu, as the next
	refs   int32       // connections
	orphan atomic.Bool // refs is 0

	memory hostMemory
}

// Hosts are the hosts that have a connection to any listener of the bridge, or Calls of an
// earlier one under way. It is safe for concurrent use.
type Hosts struct {
	mu sync.Mutex // guards of; taken before the mutexes of pools
	of map[crowd.Host]*Host
}

// NewHosts returns a table without hosts.
func NewHosts() *Hosts { return &Hosts{of: make(map[crowd.Host]*Host)} }

// Join returns the host of a, which has one connection more. The caller gives it to leave.
func (t *Hosts) Join(a netip.Addr) *Host {
	id := crowd.HostOf(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of[id]
	if h == nil {
		t.sweep()
		h = &Host{id: id, all: t}
		t.of[id] = h
	}
	h.refs++
	h.orphan.Store(false)
	return h
}

// Leave undoes one join.
func (t *Hosts) Leave(h *Host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h.refs--
	if h.refs == 0 {
		h.orphan.Store(true)
	}
	t.forget(h)
}

// forget removes h if it has no connection, holds no memory and has no Call outstanding: a host
// that connects again must find what its earlier Calls hold counted. The caller holds t.mu.
func (t *Hosts) forget(h *Host) {
	if h.refs == 0 && h.memory.held.Load() == 0 && t.of[h.id] == h && h.idle() {
		delete(t.of, h.id)
	}
}

// Count is how many hosts are known.
func (t *Hosts) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of)
}

// Shares at pools

// A hostShare is what one pool knows of a host. It outlives the host's connections as long as
// Calls of theirs are outstanding: a host that connects again has the Calls of before.
type hostShare struct {
	pool *pool.Pool // constant, as the next
	of   *PoolGroup // the group of pools that it belongs to; nil for none
	host pool.Host  // the pool's
	next *hostShare // of the same host, at another pool
}

// A PoolGroup is several pools, such as those of an upstream's lanes, that divide the weight of a host, so that a host
// with clients at many of them has no more than one with as many at one.
type PoolGroup struct{ _ byte }

// At returns what p, a pool of the group of or of none, knows of h.
func (t *Hosts) At(h *Host, p *pool.Pool, of *PoolGroup) *pool.Host {
	t.mu.Lock()
	defer t.mu.Unlock()
	var spread *pool.Spread
	for s := h.shares; s != nil; s = s.next {
		if s.pool == p {
			return &s.host
		}
		if of != nil && s.of == of {
			spread = s.host.Spread
		}
	}
	h.drop(func(s *hostShare) bool { return s.pool.Closed() })
	if spread == nil && of != nil {
		spread = &pool.Spread{}
	}
	h.shares = &hostShare{pool: p, of: of, host: pool.Host{Spread: spread}, next: h.shares}
	return &h.shares.host
}

// drop forgets the shares for which unused returns true. hosts.mu is held.
func (h *Host) drop(unused func(*hostShare) bool) {
	for at := &h.shares; *at != nil; {
		if unused(*at) {
			*at = (*at).next
			continue
		}
		at = &(*at).next
	}
}

// DropClosed forgets the pools that are closed.
func (t *Hosts) DropClosed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.of {
		h.drop(func(s *hostShare) bool { return s.pool.Closed() })
	}
}

// idle forgets the pools at which h has no Calls, and reports whether none is left. hosts.mu is
// held, and h has no connection.
func (h *Host) idle() bool {
	h.drop(func(s *hostShare) bool { return s.pool.Idle(&s.host) })
	return h.shares == nil
}

// sweepHosts is the number of hosts from which on hosts looks for those that nothing needs any
// more.
const sweepHosts = 64

// sweep forgets hosts that have neither a connection nor a Call, now and then. t.mu is held.
func (t *Hosts) sweep() {
	if n := len(t.of); n < sweepHosts || n&(n-1) != 0 {
		return
	}
	for _, h := range t.of {
		t.forget(h)
	}
}

// Memory

// A hostMemory is what Memory knows of one host.
type hostMemory struct {
	held atomic.Int64 // octets of memory for Calls that the host holds, counted in blocks
	bulk atomic.Int64 // those of them that are in bulk blocks
	sent atomic.Int64 // octets of Calls in mid and bulk blocks that have come whole from it

	line *hostLine // made when the host waits for the first time; guarded by Memory.mu
}

// A hostLine is what Memory knows of a host that has waited for memory. Memory.mu guards it.
type hostLine struct {
	pledged int64           // octets kept for waiters that were called
	waiting []*memoryWaiter // in order
	listed  bool            // the host is in Memory.line
}

// proven reports whether the host has sent as much before as it wants memory for now.
func (h *Host) proven(size int64) bool { return h.memory.sent.Load() >= size }

// take counts a block of size octets.
func (h *Host) take(size int64) {
	h.memory.held.Add(size)
	if kindOf(size) == bulkBlock {
		h.memory.bulk.Add(size)
	}
}

// give undoes take. A host without connections is forgotten when it gives its last block back.
func (h *Host) give(size int64) {
	if kindOf(size) == bulkBlock {
		h.memory.bulk.Add(-size)
	}
	if h.memory.held.Add(-size) == 0 && h.orphan.Load() {
		h.all.mu.Lock()
		h.all.forget(h)
		h.all.mu.Unlock()
	}
}

// A Weight is the share of clients whose address is in one of the prefixes.
type Weight struct {
	Clients []netip.Prefix
	Weight  int // from 1 on
}
