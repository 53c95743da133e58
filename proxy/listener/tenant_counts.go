package listener

import (
	"sync"

	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// TenantCounts count the answered Calls of the clients of a tenant.
type TenantCounts struct {
	ByLoop []*observe.Tenant
	All    *observe.Tenant // the sums of those in byLoop
}

// CountsByTenant finds what counts the answered Calls of each tenant. It is safe for concurrent use.
type CountsByTenant struct{ all sync.Map }

// Of returns what counts those of t, or nil if t is nil or was removed.
func (m *CountsByTenant) Of(t *admit.Tenant) *TenantCounts {
	n, _ := m.all.Load(t)
	c, _ := n.(*TenantCounts)
	return c
}

// Set has n count those of t, and Forget ends that.
func (m *CountsByTenant) Set(t *admit.Tenant, n *TenantCounts) { m.all.Store(t, n) }
func (m *CountsByTenant) Forget(t *admit.Tenant)               { m.all.Delete(t) }
