package proxy

import (
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside"
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

// refusals are the RDMA connections that one listener did not want. It is safe for
// concurrent use.
type refusals struct {
	counters map[string]*metrics.Counter // constant
	lines    rdmaside.LineLimit
}

func (r *refusals) init(m *metrics.Registry, listener string) {
	r.counters = make(map[string]*metrics.Counter, len(refusedReasons))
	for _, reason := range refusedReasons {
		r.counters[reason] = m.Counter("rdma_refused_total", "RDMA connections turned away or ended from here.", "listener", listener, "reason", reason)
	}
}

// count counts one, and reports whether it is to be logged and how many were not.
func (r *refusals) count(reason string) (ok bool, suppressed uint64) {
	c, known := r.counters[reason]
	if !known {
		c = r.counters[refusedOther]
	}
	c.Inc()
	return r.lines.Allow(time.Now())
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
		e = e.Uint64("suppressed", suppressed)
	}
	e.Msg(what)
}
