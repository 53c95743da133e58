package proxy

import (
	"slices"

	"github.com/rdmabridge/rdmabridge/pool"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// What limits a client
//
// The limits of a client's listener and of its tenant, its weight, and the slow start for which it waits follow the
// settings in force. The client's ledger has what it counts and where it waits; this file tells the ledger which
// limits those are.

// openLedger begins the ledger of the client.
func (f *front) openLedger() {
	l := f.listener
	s := l.Settings()
	f.ledger.Open(f, l.Hosts.Join(f.addr()), s.Rates)
	f.ledger.Weight = f.weigh(s)
}

// closeLedger ends the ledger of a client that has gone: it removes the client's Calls from all
// queues, closes the client's pinned connections and takes the client from its lanes.
func (f *front) closeLedger() {
	f.ledger.Close()
	for _, q := range f.queues {
		if f.ordered > 0 {
			f.forgetOrdered(q.u)
		}
		q.forget(f.loop.batch, errClientGone)
		q.leave()
	}
	f.queues = nil
	for c := f.held; c != nil; c = c.next {
		if c.withdraw() {
			c.finish(pool.Elsewhere)
		}
	}
	f.listener.Hosts.Leave(f.ledger.Host())
}

// weigh returns the client's weight by the settings s, or by its tenant.
func (f *front) weigh(s *listener.Settings) int {
	return f.ledger.Tenant().WeightOf(s.Weight(f.addr()))
}

// enroll makes the client a member of its tenant, unless that is open. A connection that the tenant may not have is
// closed, and no Call of it begins.
func (f *front) enroll() {
	g, l := &f.ledger, f.listener
	f.tenantOpen = l.TenantOpen(f.addr())
	t := l.Tenants.Of(f.addr(), nil)
	if t == nil || f.tenantOpen {
		return
	}
	if why, err := g.Enroll(t, f.addr()); err != nil {
		l.RefusedByTenant(f.peer, t, why, err)
		f.draining = true
		f.Close(err)
		return
	}
	f.reportTo(t)
	g.Weight = f.weigh(l.Settings())
}

// enrollLate makes a client whose tenant was open, or that has started TLS, a member of the tenant that it belongs
// to. It reports false if this tenant may not have the connection, which is closed then.
func (f *front) enrollLate() bool {
	g, l := &f.ledger, f.listener
	f.tenantOpen = false
	t := l.Tenants.Of(f.addr(), f.identity)
	if t == nil || f.draining || g.Tenant() == t {
		return true
	}
	why, err := t.MayJoin(f.addr(), f.loop.Now()) // like a new connection
	if err == nil {
		why, err = g.Enroll(t, f.addr())
	}
	if err != nil {
		l.RefusedByTenant(f.peer, t, why, err)
		f.draining = true
		f.client.admit()
		f.Close(err)
		return false
	}
	f.Follow()
	return true
}

// reportTo has the client's answered Calls counted for t, if it is not nil.
func (f *front) reportTo(t *admit.Tenant) {
	f.seen.Tenant = nil
	if n := f.listener.TenantCounts.Of(t); n != nil {
		f.seen.Tenant = n.ByLoop[f.loop.index]
	}
}

// followTenant makes the client a member of the tenant that has it now.
func (f *front) followTenant() {
	if f.tenantOpen {
		if f.tenantOpen = f.listener.TenantOpen(f.addr()); f.tenantOpen {
			return
		}
	}
	f.ledger.FollowTenant(f.listener.Tenants.Of(f.addr(), f.identity), f.addr(), f.draining)
	f.reportTo(f.ledger.Tenant())
}

// Follow applies the listener's settings in force to the client, and the tenants: its weight, its rate
// limits, for which slow start it waits, and whether it may have pinned connections. NFS clients stay for
// months, so Follow forgets the queues at upstreams that have ended, in which no Call is left.
func (f *front) Follow() {
	g, l := &f.ledger, f.listener
	s := l.Settings()
	f.followTenant()
	if w := f.weigh(s); w != g.Weight {
		g.Weight = w
		l.Reweigh(&f.place)
		for _, q := range f.queues {
			q.reweigh(w)
		}
	}
	f.queues = slices.DeleteFunc(f.queues, func(q *clientQueue) bool { return q.u.Ended() })
	for _, q := range f.queues {
		if !q.stays() {
			q.decided = q.u.Settings().Mode == settings.ModeShared
		}
	}
	g.FollowRates(s.Rates)
	g.FollowSlowStart(func(a *admit.SlowStart) bool {
		return slices.ContainsFunc(s.Upstreams(), func(u *upstream.Upstream) bool { return u.Admission == a })
	})
}

// slowStart returns the admission where the client has to ask before its first Call is read, or
// nil if an upstream of the listener is beyond its slow start.
func (f *front) slowStart() *admit.SlowStart {
	us := f.listener.Settings().Upstreams()
	if len(us) == 0 || slices.ContainsFunc(us, func(u *upstream.Upstream) bool { return u.SlowStart.Over() }) {
		return nil
	}
	return us[0].Admission
}

// arrive makes the client wait if it has to ask for its first Call, which waits to be read, and
// there is no room for it. A client that sends nothing never asks, and holds no place.
func (f *front) arrive() {
	if a := f.slowStart(); a != nil {
		f.ledger.ArriveAt(a)
	}
}

// wait makes reasons those of mask for which the bridge does not read from the client; it leaves the others.
func (f *front) wait(reasons, mask uint16) {
	if f.ledger.Pauses.Differs(reasons, mask) {
		f.pause(reasons, mask)
	}
}

// pause does what wait does, when something changes. It is a call, so that wait is none.
//
//go:noinline
func (f *front) pause(reasons, mask uint16) {
	f.ledger.Pauses.Set(reasons, mask, f.loop.Now(), f.counts.Waits)
}

// bounds are how much the client may have under way.
func (f *front) bounds() admit.Bounds { return f.listener.Settings().Bounds() }
