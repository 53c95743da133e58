package admit

import (
	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// CountWaiting counts in d, the status of a tenant, a client that is not read from for these reasons.
func CountWaiting(d *status.Tenant, reasons uint16) {
	for k := gates.GateTenantAddressRate; k < gates.Gates; k++ {
		if reasons&(1<<k) != 0 {
			d.Waiting[tenantLimitNames[k-gates.GateTenantAddressRate]]++
		}
	}
}

// Status describes the tenant, without its answered Calls and the clients that wait at gates.
func (t *Tenant) Status() status.Tenant {
	o := t.current.Load()
	calls, octets := t.quota.load()
	d := status.Tenant{
		Name: t.Name, InFlight: int(calls), Memory: octets,
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
