package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// The reasons why RDMA clients are refused, or closed while they are idle: labels of
// rdmabridge_listener_refused_connections_total, together with the reasons of providers. TCP clients have those
// of limits, too.
const (
	refusedAddress  = "connections_per_address" // the address has too many connections
	refusedPort     = "port"                    // the port is not privileged
	refusedDraining = "draining"
	refusedMemory   = "memory"   // there is no memory for Receives
	refusedSetup    = "setup"    // the connection ended while it was being set up
	refusedIdle     = "idle"     // closed by the idle timeout
	refusedHoarding = "hoarding" // closed while idle, because new clients need its Receives
	refusedOther    = "other"    // a provider's reason that is not in refusedReasons

	refusedRate        = "connection_rate"             // too many new connections come in a second
	refusedAddressRate = "connection_rate_per_address" // too many come from the address
)

// refusedByLimits are the reasons of the proxy's own limits, which RDMA and TCP clients have in common. Package
// tcpframe has the other reasons for TCP clients.
var refusedByLimits = append([]string{refusedRate, refusedAddressRate}, refusedTenant[:]...)

var refusedReasons = []string{
	"address", "connections", "sockets", "starting", "starting_per_address", "timeout", "request", "device",
	refusedAddress, refusedPort, refusedDraining, refusedMemory, refusedSetup, refusedIdle, refusedHoarding, refusedOther,
}

// refusals counts the connections that one listener refused or closed while they were idle, as far as package
// tcpframe does not. It is safe for concurrent use.
type refusals struct {
	counters map[string]*metrics.Counter // constant

	lines, idle, hoarding loglimit.Limit
}

func (r *refusals) init(m *metrics.Registry, listener string, isRDMA bool) {
	reasons := refusedByLimits
	if isRDMA {
		reasons = slices.Concat(refusedReasons, refusedByLimits)
	}
	r.counters = make(map[string]*metrics.Counter, len(reasons))
	for _, reason := range reasons {
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

var errRate = errors.New("proxy: too many new connections")

// admission returns why no client at peer may connect now, as far as rates of new connections and the limits
// of its tenant say. tenant has that limit; it is nil if the limit is the listener's. Any goroutine.
func (l *listener) admission(peer netip.Addr) (tenant *tenant, why tenantRefusal, reason string, err error) {
	o, now := &l.settings().opts, l.p.engine.Now()
	all := 0
	if l.isRDMA {
		all = o.ConnectionsRate // a TCP listener pauses instead of refusing
	}
	switch l.arrivals.enter(crowd.HostOf(peer), all, o.ClientConnectionsRate, now) {
	case arrivalOverRate:
		return nil, 0, refusedRate, fmt.Errorf("%w: more than %d a second", errRate, all)
	case arrivalOverOfHost:
		return nil, 0, refusedAddressRate, fmt.Errorf("%w: more than %d a second from this address", errRate, o.ClientConnectionsRate)
	}
	if t := l.p.tenantOf(peer, nil); t != nil && !l.tenantOpen(peer) {
		if why, err := t.admission(peer, now); err != nil {
			return t, why, refusedTenant[why], err
		}
	}
	return nil, 0, "", nil
}

// admitTCP reports whether a TCP client at peer may connect, as admission says. It counts and logs it otherwise.
// Any goroutine.
func (l *listener) admitTCP(peer netip.AddrPort) bool {
	t, why, reason, err := l.admission(peer.Addr())
	switch {
	case err == nil:
		return true
	case t != nil:
		l.refusedByTenant(peer, t, why, err)
	default:
		l.refused(peer, reason, err)
	}
	return false
}

// admitRDMA returns why no RDMA client at a may connect, or "". The provider has the refusal counted. Any
// goroutine.
func (l *listener) admitRDMA(a netip.Addr) (reason string, err error) {
	t, why, reason, err := l.admission(a)
	if t != nil {
		t.refused[why].Inc()
	}
	return reason, err
}

// refusedByTenant counts and logs a connection that t may not have. Any goroutine.
func (l *listener) refusedByTenant(peer netip.AddrPort, t *tenant, why tenantRefusal, err error) {
	t.refused[why].Inc()
	l.refused(peer, refusedTenant[why], err)
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
