package proxy

import (
	"net/netip"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
)

// A host is what the bridge counts as one client when it divides something among clients: all
// connections from one IPv4 address, or from one IPv6 /64. A host that opens more connections
// gains nothing by it.
type host struct {
	addr netip.Addr // the address, with the low half of an IPv6 address cleared; constant
	refs int        // connections; guarded by hosts.mu
}

// hosts are the hosts that have a connection to any listener of the bridge. It is safe for
// concurrent use.
type hosts struct {
	mu sync.Mutex // a leaf
	of map[netip.Addr]*host
}

func newHosts() *hosts { return &hosts{of: make(map[netip.Addr]*host)} }

// join returns the host of a, which has one connection more. The caller gives it to leave.
func (t *hosts) join(a netip.Addr) *host {
	a = crowd.Host(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of[a]
	if h == nil {
		h = &host{addr: a}
		t.of[a] = h
	}
	h.refs++
	return h
}

// leave undoes one join.
func (t *hosts) leave(h *host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.refs--; h.refs == 0 {
		delete(t.of, h.addr)
	}
}
