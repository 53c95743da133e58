package proxy

import "github.com/rdmabridge/rdmabridge/pool"

// A hostShare is what one pool knows of a host. It outlives the host's connections as long as
// Calls of theirs are outstanding: a host that connects again has the Calls of before.
type hostShare struct {
	pool *pool.Pool // constant, as the next
	lane *upstream  // whose lane has the pool; nil for another pool
	host pool.Host  // the pool's
	next *hostShare // of the same host, at another pool
}

// at returns what p knows of h.
func (t *hosts) at(h *host, p *pool.Pool) *pool.Host { return t.atLane(h, p, nil) }

// atLane does what at does, for the pool of a lane of u. The lanes of u divide the host's weight, so
// that a host with clients on many lanes has no more than one with as many on one.
func (t *hosts) atLane(h *host, p *pool.Pool, u *upstream) *pool.Host {
	t.mu.Lock()
	defer t.mu.Unlock()
	var spread *pool.Spread
	for s := h.shares; s != nil; s = s.next {
		if s.pool == p {
			return &s.host
		}
		if u != nil && s.lane == u {
			spread = s.host.Spread
		}
	}
	h.drop(func(s *hostShare) bool { return s.pool.Closed() })
	if spread == nil && u != nil {
		spread = &pool.Spread{}
	}
	h.shares = &hostShare{pool: p, lane: u, host: pool.Host{Spread: spread}, next: h.shares}
	return &h.shares.host
}

// drop forgets the shares for which unused returns true. hosts.mu is held.
func (h *host) drop(unused func(*hostShare) bool) {
	for at := &h.shares; *at != nil; {
		if unused(*at) {
			*at = (*at).next
			continue
		}
		at = &(*at).next
	}
}

// dropClosed forgets the pools that are closed.
func (t *hosts) dropClosed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.of {
		h.drop(func(s *hostShare) bool { return s.pool.Closed() })
	}
}

// idle forgets the pools at which h has no Calls, and reports whether none is left. hosts.mu is
// held, and h has no connection.
func (h *host) idle() bool {
	h.drop(func(s *hostShare) bool { return s.pool.Idle(&s.host) })
	return h.shares == nil
}

// sweepHosts is the number of hosts from which on hosts looks for those that nothing needs any
// more.
const sweepHosts = 64

// sweep forgets hosts that have neither a connection nor a Call, now and then. t.mu is held.
func (t *hosts) sweep() {
	if n := len(t.of); n < sweepHosts || n&(n-1) != 0 {
		return
	}
	for _, h := range t.of {
		t.forget(h)
	}
}
