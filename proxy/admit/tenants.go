package admit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Tenants are all tenants of the bridge. set replaces them, one call at a time. The other methods are safe for
// concurrent use.
type Tenants struct {
	metrics *metrics.Registry // constant, as the next
	clock   func() int64      // of the loops
	current atomic.Pointer[[]*Tenant]
}

// NewTenants returns no tenants yet. clock is that of the loops.
func NewTenants(m *metrics.Registry, clock func() int64) *Tenants {
	return &Tenants{metrics: m, clock: clock}
}

// List returns the tenants in force, in order.
func (ts *Tenants) List() []*Tenant {
	if l := ts.current.Load(); l != nil {
		return *l
	}
	return nil
}

// Of returns the tenant of clients at a, whose certificate says who they are, or nil.
func (ts *Tenants) Of(a netip.Addr, who *tlsconf.Identity) *Tenant {
	for _, t := range ts.List() {
		if t.current.Load().has(a, who) {
			return t
		}
	}
	return nil
}

// Open reports whether a certificate may still make a client at a a member of a tenant, or of another than its
// address does.
func (ts *Tenants) Open(a netip.Addr) bool {
	for _, t := range ts.List() {
		switch o := t.current.Load(); {
		case o.has(a, nil):
			return false
		case len(o.Names) > 0:
			return true
		}
	}
	return false
}

// checkTenants reports every setting that cannot work.
func checkTenants(all []TenantOptions) error {
	var errs []error
	for i := range all {
		errs = append(errs, all[i].check())
		if slices.ContainsFunc(all[:i], func(o TenantOptions) bool { return o.Name == all[i].Name }) {
			errs = append(errs, fmt.Errorf("proxy: tenant %q named twice", all[i].Name))
		}
	}
	return errors.Join(errs...)
}

// A tenantWatcher is told what becomes of tenants while set runs.
type tenantWatcher interface {
	// Added is called before t is in force.
	Added(t *Tenant)
	// Changed is called when the new tenants are in force. It has all clients follow them.
	Changed()
	// Removed is called when no client belongs to t any more, or will follow soon.
	Removed(t *Tenant)
}

// Set replaces the tenants. After an error nothing has changed.
func (ts *Tenants) Set(all []TenantOptions, w tenantWatcher) error {
	if err := checkTenants(all); err != nil {
		return err
	}
	old := ts.List()
	next := make([]*Tenant, 0, len(all))
	var replaced []func()
	for i := range all {
		o := all[i]
		o.Clients = slices.Clone(o.Clients)
		j := slices.IndexFunc(old, func(t *Tenant) bool { return t.Name == o.Name })
		if j < 0 {
			t := newTenant(ts.metrics, ts.clock, &o)
			w.Added(t)
			next = append(next, t)
			continue
		}
		t := old[j]
		was := t.set(&o)
		replaced = append(replaced, func() { was.Replaced(t.rates.Load()); t.serveAll() })
		next = append(next, t)
	}
	ts.current.Store(&next)
	w.Changed()
	for _, f := range replaced {
		f()
	}
	for _, t := range old {
		if !slices.Contains(next, t) {
			t.rates.Load().Replaced(nil) // its gates forget the clients that have left it
			w.Removed(t)
			ts.metrics.Forget("tenant", t.Name)
		}
	}
	return nil
}
