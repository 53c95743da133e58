package proxy

import (
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// Reasons for which RDMA clients are turned away, or closed because they do
// nothing: labels of rdmabridge_rdma_refused_total. The first of them are the
// provider's.
const (
	refusedAddress  = "connections_per_address" // too many of this address
	refusedDraining = "draining"
	refusedMemory   = "memory"   // none for Receives
	refusedSetup    = "setup"    // it ended while it was being set up
	refusedIdle     = "idle"     // closed: see ListenerOptions.IdleTimeout
	refusedHoarding = "hoarding" // closed: idle, with Receives that newcomers need
	refusedOther    = "other"    // a provider's reason that is not known here
)

var refusedReasons = []string{
	"address", "connections", "starting", "starting_addr", "timeout", "request",
	refusedAddress, refusedDraining, refusedMemory, refusedSetup, refusedIdle, refusedHoarding, refusedOther,
}

// refusedLines is how many refusals are logged each second: strangers can cause
// any number. All are counted.
const refusedLines = 10

// refusals are the RDMA connections that one listener did not want. It is safe for
// concurrent use.
type refusals struct {
	counters map[string]*metrics.Counter // constant

	mu         sync.Mutex // guards the rest; a leaf
	second     int64
	lines      int
	suppressed int
}

func (r *refusals) init(m *metrics.Registry, listener string) {
	r.counters = make(map[string]*metrics.Counter, len(refusedReasons))
	for _, reason := range refusedReasons {
		r.counters[reason] = m.Counter("rdma_refused_total", "RDMA connections turned away or ended from here.", "listener", listener, "reason", reason)
	}
}

// count counts one, and reports whether it is to be logged and how many were not.
func (r *refusals) count(reason string) (ok bool, suppressed int) {
	c, known := r.counters[reason]
	if !known {
		c = r.counters[refusedOther]
	}
	c.Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now().Unix(); now != r.second {
		r.second, r.lines = now, 0
	}
	if r.lines >= refusedLines {
		r.suppressed++
		return false, 0
	}
	r.lines++
	suppressed, r.suppressed = r.suppressed, 0
	return true, suppressed
}

// refused counts and logs a connection that l did not want. It may be called on any
// goroutine.
func (l *listener) refused(peer netip.AddrPort, reason string, err error) {
	ok, suppressed := l.refusals.count(reason)
	if !ok {
		return
	}
	level, what := zerolog.WarnLevel, "connection refused"
	switch reason {
	case refusedIdle:
		level, what = zerolog.DebugLevel, "idle connection closed"
	case refusedHoarding:
		level, what = zerolog.InfoLevel, "idle connection closed for its memory"
	}
	e := l.log.WithLevel(level).Stringer("peer", peer).Str("reason", reason).Err(err)
	if suppressed > 0 {
		e = e.Int("suppressed", suppressed)
	}
	e.Msg(what)
}
