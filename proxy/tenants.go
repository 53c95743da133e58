package proxy

import (
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// A tenantChange is the Proxy while its tenants are replaced. tenantWatcher.
type tenantChange Proxy

func (p *tenantChange) Added(t *admit.Tenant) {
	n := &listener.TenantCounts{All: observe.NewTenant(p.metrics, t.Name)}
	for _, on := range p.listening {
		n.ByLoop = append(n.ByLoop, observe.NewTenant(on.Metrics, t.Name))
	}
	p.tenantCounts.Set(t, n)
}

func (p *tenantChange) Changed() {
	for _, l := range (*Proxy)(p).AllListeners() {
		l.Follow()
	}
}

func (p *tenantChange) Removed(t *admit.Tenant) { p.tenantCounts.Forget(t) }

// SetTenants replaces the tenants. Connected clients follow: they are counted for the tenant that has them
// now, and its limits hold for what they do from now on. None of them is closed. After an error nothing has changed.
func (p *Proxy) SetTenants(all []admit.TenantOptions) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.tenants.Set(all, (*tenantChange)(p))
}

// tenantStatus describes the tenants.
func (p *Proxy) tenantStatus(found []*collector) []status.Tenant {
	list := p.tenants.List()
	all := make([]status.Tenant, len(list))
	at := make(map[*admit.Tenant]*status.Tenant)
	for i, t := range list {
		all[i] = t.Status()
		at[t] = &all[i]
		if n := p.tenantCounts.Of(t); n != nil {
			all[i].Calls, all[i].Traffic = n.All.Value()
		}
	}
	for _, c := range found {
		for i := range c.reports {
			r := &c.reports[i]
			if d := at[r.tenant]; d != nil {
				admit.CountWaiting(d, r.Waits)
			}
		}
	}
	return all
}
