package listener

import (
	"slices"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
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
	RefusedIdle     = "idle"     // closed by the idle timeout
	RefusedHoarding = "hoarding" // closed while idle, because new clients need its Receives
	refusedOther    = "other"    // a provider's reason that is not in refusedReasons

	refusedRate        = "connection_rate"             // too many new connections come in a second
	refusedAddressRate = "connection_rate_per_address" // too many come from the address
)

// refusedByLimits are the reasons of the proxy's own limits, which RDMA and TCP clients have in common. Package
// tcpframe has the other reasons for TCP clients.
var refusedByLimits = append([]string{refusedRate, refusedAddressRate}, admit.TenantRefusals[:]...)

var refusedReasons = []string{
	"address", "connections", "sockets", "starting", "starting_per_address", "timeout", "request", "device",
	refusedAddress, refusedPort, refusedDraining, refusedMemory, refusedSetup, RefusedIdle, RefusedHoarding, refusedOther,
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
