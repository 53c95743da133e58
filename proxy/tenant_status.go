package proxy

import "github.com/rdmabridge/rdmabridge/internal/status"

// A tenantLimit is a limit of a tenant for which clients wait.
type tenantLimit uint8

const (
	limitAddressRate tenantLimit = iota // the first are those that have gates, from gateTenantAddressRate on
	limitTotalRate
	limitAddress
	limitTotal
	limitMemory // for incomplete Calls
	tenantLimits
)

var tenantLimitNames = [tenantLimits]string{"address_rate", "total_rate", "address", "total", "memory"}

// tenantStatus describes the tenants.
func (p *Proxy) tenantStatus(found []*collector) []status.Tenant {
	list := p.tenantList()
	all := make([]status.Tenant, len(list))
	at := make(map[*tenant]*status.Tenant)
	for i, t := range list {
		all[i] = t.status()
		at[t] = &all[i]
	}
	for _, c := range found {
		for i := range c.reports {
			r := &c.reports[i]
			d := at[r.tenant]
			if d == nil {
				continue
			}
			for k := gateTenantAddressRate; k < gates; k++ {
				if r.waits&(1<<k) != 0 {
					d.Waiting[tenantLimitNames[k-gateTenantAddressRate]]++
				}
			}
		}
	}
	return all
}

// status describes the tenant, without the clients that wait at gates.
func (t *tenant) status() status.Tenant {
	o := t.current.Load()
	calls, octets := t.quota.load()
	d := status.Tenant{
		Name: t.name, InFlight: int(calls), Memory: octets, Calls: t.counted.calls.Value(),
		Traffic: status.Traffic{BytesIn: t.counted.in.Value(), BytesOut: t.counted.out.Value()},
		Waiting: make(map[string]int), Waits: make(map[string]uint64), Refused: make(map[string]uint64),
		Total: o.Total.status(), Address: o.Address.status(),
	}
	t.mu.Lock()
	d.Clients, d.Addresses = t.clients, len(t.addresses)
	t.mu.Unlock()
	if n := t.lined.Load(); n > 0 {
		d.Waiting[tenantLimitNames[limitMemory]] = int(n)
	}
	for i, c := range t.waits {
		if n := c.Value(); n > 0 {
			d.Waits[tenantLimitNames[i]] = n
		}
	}
	for i, c := range t.refused {
		if n := c.Value(); n > 0 {
			d.Refused[tenantRefusalNames[i]] = n
		}
	}
	return d
}

func (l *TenantLimits) status() status.TenantLimits {
	return status.TenantLimits{
		Connections: l.Connections, ConnectionsASecond: l.ConnectionsRate, Calls: l.Calls, Memory: l.Memory,
		CallsASecond: l.Rate.Calls, BytesASecond: l.Rate.Octets,
	}
}
