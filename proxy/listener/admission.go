package listener

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// Refused counts and logs a connection that l refused, or closed while it was idle. Any
// goroutine.
func (l *Listener) Refused(peer netip.AddrPort, reason string, err error) {
	r := &l.refusals
	r.count(reason)
	what := "connection refused"
	var e *zerolog.Event
	switch reason {
	case RefusedIdle:
		e, what = r.idle.Line(&l.Log, zerolog.DebugLevel, "client_closed"), "idle connection closed"
	case RefusedHoarding:
		e, what = r.hoarding.Line(&l.Log, zerolog.InfoLevel, "client_closed"), "idle connection closed for its memory"
	default:
		e = r.lines.Line(&l.Log, zerolog.WarnLevel, "client_refused")
	}
	e.Stringer("peer", peer).Str("reason", reason).Err(err).Msg(what)
}

var errRate = errors.New("proxy: too many new connections")

// admission returns why no client at peer may connect now, as far as rates of new connections and the limits
// of its tenant say. tenant has that limit; it is nil if the limit is the listener's. Any goroutine.
func (l *Listener) admission(
	peer netip.Addr,
) (tenant *admit.Tenant, why admit.TenantRefusal, reason string, err error) {
	o, now := &l.Settings().Opts, l.Engine.Now()
	all := 0
	if l.IsRDMA {
		all = o.ConnectionsRate // a TCP listener pauses instead of refusing
	}
	switch l.arrivals.Enter(crowd.HostOf(peer), all, o.ClientConnectionsRate, now) {
	case gates.OverRate:
		return nil, 0, refusedRate, fmt.Errorf("%w: more than %d a second", errRate, all)
	case gates.OverHostRate:
		return nil, 0, refusedAddressRate, fmt.Errorf("%w: more than %d a second from this address", errRate,
			o.ClientConnectionsRate)
	}
	if t := l.Tenants.Of(peer, nil); t != nil && !l.TenantOpen(peer) {
		if why, err := t.MayJoin(peer, now); err != nil {
			return t, why, admit.TenantRefusals[why], err
		}
	}
	return nil, 0, "", nil
}

// admitTCP reports whether a TCP client at peer may connect, as admission says. It counts and logs it otherwise.
// Any goroutine.
func (l *Listener) admitTCP(peer netip.AddrPort) bool {
	t, why, reason, err := l.admission(peer.Addr())
	switch {
	case err == nil:
		return true
	case t != nil:
		l.RefusedByTenant(peer, t, why, err)
	default:
		l.Refused(peer, reason, err)
	}
	return false
}

// admitRDMA returns why no RDMA client at a may connect, or "". The provider has the refusal counted. Any
// goroutine.
func (l *Listener) admitRDMA(a netip.Addr) (reason string, err error) {
	t, why, reason, err := l.admission(a)
	if t != nil {
		t.Refuse(why)
	}
	return reason, err
}

// RefusedByTenant counts and logs a connection that t may not have. Any goroutine.
func (l *Listener) RefusedByTenant(peer netip.AddrPort, t *admit.Tenant, why admit.TenantRefusal, err error) {
	l.Refused(peer, t.Refuse(why), err)
}

// refusedStatus is how many connections the listener has refused or closed so far, by reason.
func (l *Listener) refusedStatus() map[string]uint64 {
	all := make(map[string]uint64)
	for reason, c := range l.refusals.counters {
		if n := c.Value(); n > 0 {
			all[reason] += n
		}
	}
	if !l.IsRDMA {
		l.Engine.Refused(l.Name, all)
	}
	return all
}
