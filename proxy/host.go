package proxy

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
)

// A host is what the bridge counts as one client when it divides something among clients: all
// connections from one IPv4 address, or from one IPv6 /64. A host that opens more connections
// gains nothing by it.
type host struct {
	id     crowd.Host  // constant
	all    *hosts      // constant
	shares *hostShare  // at the pools where the host had Calls, linked by next; guarded by hosts.mu, as the next
	refs   int32       // connections
	orphan atomic.Bool // refs is 0

	memory hostMemory
}

// hosts are the hosts that have a connection to any listener of the bridge, or Calls of an
// earlier one under way. It is safe for concurrent use.
type hosts struct {
	calls *callMemory // memory for Calls; constant after newCallMemory

	mu sync.Mutex // guards of; taken before the mutexes of pools
	of map[crowd.Host]*host
}

func newHosts() *hosts { return &hosts{of: make(map[crowd.Host]*host)} }

// join returns the host of a, which has one connection more. The caller gives it to leave.
func (t *hosts) join(a netip.Addr) *host {
	id := crowd.HostOf(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of[id]
	if h == nil {
		t.sweep()
		h = &host{id: id, all: t}
		t.of[id] = h
	}
	h.refs++
	h.orphan.Store(false)
	return h
}

// leave undoes one join.
func (t *hosts) leave(h *host) {
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
func (t *hosts) forget(h *host) {
	if h.refs == 0 && h.memory.held.Load() == 0 && t.of[h.id] == h && h.idle() {
		delete(t.of, h.id)
	}
}
