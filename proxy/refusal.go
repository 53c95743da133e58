package proxy

import (
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// The reasons why RDMA clients are refused, or closed while they are idle: labels of
// rdmabridge_listener_refused_connections_total, together with the reasons of providers.
const (
	refusedAddress  = "connections_per_address" // the address has too many connections
	refusedPort     = "port"                    // the port is not privileged
	refusedDraining = "draining"
	refusedMemory   = "memory"   // there is no memory for Receives
	refusedSetup    = "setup"    // the connection ended while it was being set up
	refusedIdle     = "idle"     // closed by the idle timeout
	refusedHoarding = "hoarding" // closed while idle, because new clients need its Receives
	refusedOther    = "other"    // a provider's reason that is not in refusedReasons
)

var refusedReasons = []string{
	"address", "connections", "sockets", "starting", "starting_per_address", "timeout", "request", "device",
	refusedAddress, refusedPort, refusedDraining, refusedMemory, refusedSetup, refusedIdle, refusedHoarding, refusedOther,
}

// refusals counts the RDMA connections that one listener refused or closed while they were
// idle. It is safe for concurrent use.
type refusals struct {
	counters map[string]*metrics.Counter // constant

	lines, idle, hoarding loglimit.Limit
}

func (r *refusals) init(m *metrics.Registry, listener string) {
	r.counters = make(map[string]*metrics.Counter, len(refusedReasons))
	for _, reason := range refusedReasons {
		r.counters[reason] = m.Counter(metrics.ListenerRefusedConnections, listener, reason)
	}
}

// count counts one refusal.
func (r *refusals) count(reason string) {
	c, known := r.counters[reason]
	if !known {
		c = r.counters[refusedOther]
	}
	c.Inc()
}

// refused counts and logs a connection that l refused, or closed while it was idle. Any
// goroutine.
func (l *listener) refused(peer netip.AddrPort, reason string, err error) {
	r := &l.refusals
	r.count(reason)
	what := "connection refused"
	var e *zerolog.Event
	switch reason {
	case refusedIdle:
		e, what = r.idle.Line(&l.log, zerolog.DebugLevel, "client_closed"), "idle connection closed"
	case refusedHoarding:
		e, what = r.hoarding.Line(&l.log, zerolog.InfoLevel, "client_closed"), "idle connection closed for its memory"
	default:
		e = r.lines.Line(&l.log, zerolog.WarnLevel, "client_refused")
	}
	e.Stringer("peer", peer).Str("reason", reason).Err(err).Msg(what)
}

// refusedStatus is how many connections the listener has refused or closed so far, by reason.
func (l *listener) refusedStatus() map[string]uint64 {
	all := make(map[string]uint64)
	for reason, c := range l.refusals.counters {
		if n := c.Value(); n > 0 {
			all[reason] += n
		}
	}
	if !l.isRDMA {
		l.p.engine.Refused(l.name, all)
	}
	return all
}
