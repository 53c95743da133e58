package iwarp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A startup is a connection that a listener has accepted and not yet answered.
//
// Anybody can open connections and send nothing, so there is a limit to how many start-ups there
// are. When it is reached, the listener does not refuse the newcomer, who may be honest, but closes
// the oldest silent one of the host that has the most: an honest peer sends its Request within a
// round trip, and has few.
type startup struct {
	nc      net.Conn
	peer    netip.AddrPort
	silence crowd.Member[*startup] // the place in listener.silent, until the Request is there
	evicted string                 // the reason for which it was closed for another; "" if it was not
}

// admit counts a start-up, or returns the reason to refuse it. It looks at the address and the
// limits, before anything is read or written.
func (l *listener) admit(s *startup) (reason string, err error) {
	peer := s.peer.Addr()
	if l.opts.Allow != nil && !l.opts.Allow(peer) {
		return refusedAddress, fmt.Errorf("iwarp: %v is not allowed", peer)
	}
	if l.opts.Admit != nil {
		if reason, err := l.opts.Admit(peer); reason != "" {
			return reason, err
		}
	}
	over := func(n, most int) bool { return most > 0 && n >= most }
	o := &l.opts
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return refusedConnections, net.ErrClosed
	}
	replaces := false
	switch {
	case over(l.silent.Count(peer), o.MaxStartingPerAddr):
		replaces = l.evict(l.silent.Oldest(peer), refusedStartingAddr)
		if !replaces {
			return refusedStartingAddr, fmt.Errorf("iwarp: %w: %d connections starting from %v", fabric.ErrLimit, l.silent.Count(peer), peer)
		}
	case over(len(l.starting), o.MaxStarting):
		replaces = l.evict(l.silent.Largest(), refusedStarting)
		if !replaces {
			return refusedStarting, fmt.Errorf("iwarp: %w: %d connections starting", fabric.ErrLimit, len(l.starting))
		}
	}
	if err := l.p.limits.conn(); err != nil {
		return refusedConnections, fmt.Errorf("iwarp: %w", err)
	}
	if q := o.Sockets; q != nil && !q.Take(replaces) && !(l.evict(l.silent.Largest(), refusedSockets) && q.Take(true)) {
		l.p.limits.connDone()
		return refusedSockets, fmt.Errorf("iwarp: %w: the process has too many sockets; a higher RLIMIT_NOFILE allows more", fabric.ErrLimit)
	}
	l.starting[s] = struct{}{}
	s.silence.Value = s
	l.silent.Add(&s.silence, peer, 1)
	return "", nil
}

// evict closes the start-up of m for another one. It reports false if m is nil, or if as many as may
// start up have been closed and have not ended yet. l.mu is held.
func (l *listener) evict(m *crowd.Member[*startup], reason string) bool {
	if m == nil || l.evicted > 0 && l.evicted >= l.opts.MaxStarting {
		return false
	}
	s := m.Value
	s.evicted = reason
	l.evicted++
	l.silent.Remove(m)
	delete(l.starting, s)
	s.nc.Close()
	return true
}

// requested counts off a silent start-up, whose Request was read with err. It returns the reason
// to close it, if there is one.
func (l *listener) requested(s *startup, err error) (reason string, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent.Remove(&s.silence)
	var ne net.Error
	switch {
	case s.evicted != "":
		return s.evicted, fmt.Errorf("%w: closed for another connection", fabric.ErrLimit)
	case errors.As(err, &ne) && ne.Timeout():
		return refusedTimeout, err
	case err != nil:
		return refusedRequest, err
	}
	return "", nil
}

// started counts a start-up off that has succeeded or failed.
func (l *listener) started(s *startup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.starting, s)
}

// ended counts a start-up off that never came to be a connection. Its socket is closed.
func (l *listener) ended(s *startup) {
	l.mu.Lock()
	delete(l.starting, s)
	if s.evicted != "" {
		l.evicted--
	}
	l.mu.Unlock()
	l.release()
}
