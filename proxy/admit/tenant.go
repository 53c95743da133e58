package admit

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// Tenants
//
// A tenant is a named group of clients with limits of its own, for all its clients together and for each of its
// addresses, whatever listeners they connect to. What one tenant may not have does not matter to others: a client
// that exceeds a limit of Calls, memory or rates is not read from for a while, and a connection that exceeds a limit
// of connections is refused.
//
// A connection is looked at twice. When it has been accepted, mayJoin checks the limits without counting, so that a
// storm costs nothing more than accept and close. When its loop has it, Client.Enroll counts it, or closes it. Where
// the certificate of a client may decide, its tenant is open at first: it belongs to none until it has TLS, or has
// sent something else than the question for TLS. Then it is a new connection of its tenant, and refused like one. So
// nobody waits, before the certificate is seen, because of a tenant that others belong to.
//
// What a client has under way is counted on its own loop, in its membership, and added to two quotas: that of the
// tenant and that of the address. A client without a tenant has no membership, and costs one look at a nil pointer in
// each place.

// A Tenant is what the bridge knows of one group. It stays, with what it has counted, while its name stays in
// the configuration. It is safe for concurrent use.
type Tenant struct {
	Name    string       // constant, as the next
	clock   func() int64 // of the loops
	current atomic.Pointer[TenantOptions]
	rates   atomic.Pointer[gates.Rates] // nil for none

	quota       quota
	total, each quotaLimits // of quota, and of those of the addresses
	arrivals    gates.Arrivals

	waits   [tenantLimits]*metrics.Counter
	refused [tenantRefusals]*metrics.Counter

	lined atomic.Int32 // connections in line

	mu        sync.Mutex // guards the rest; a leaf
	clients   int
	addresses map[crowd.Host]*tenantAddress
	line      []lineWait
}

// A tenantAddress is one address of a tenant that has connections, or has Calls of earlier ones under way.
type tenantAddress struct {
	id      crowd.Host
	quota   quota
	clients atomic.Int32 // changes while Tenant.mu is held
}

// A tenantLimit is a limit of a tenant for which clients wait.
type tenantLimit uint8

const (
	limitAddressRate tenantLimit = iota // the first are those that have gates, from gates.GateTenantAddressRate on
	limitTotalRate
	limitAddress
	limitTotal
	limitMemory // for incomplete Calls
	tenantLimits
)

var tenantLimitNames = [tenantLimits]string{"address_rate", "total_rate", "address", "total", "memory"}

// A TenantRefusal is a reason to refuse a connection because of its tenant.
type TenantRefusal uint8

const (
	tenantFull        TenantRefusal = iota // the tenant has as many connections as it may
	tenantAddressFull                      // the address has
	tenantOverRate                         // too many new connections of the tenant come in a second
	tenantAddressOverRate
	tenantRefusals
)

// tenantRefusalNames label the metric of tenants.
var tenantRefusalNames = [tenantRefusals]string{"connections", "connections_per_address", "rate", "rate_per_address"}

// TenantRefusals are the reasons of listeners for these refusals.
var TenantRefusals = [tenantRefusals]string{
	"tenant_connections", "tenant_connections_per_address", "tenant_connection_rate", "tenant_connection_rate_per_address",
}

var errTenant = errors.New("proxy: a limit of the client's tenant")

func newTenant(m *metrics.Registry, clock func() int64, o *TenantOptions) *Tenant {
	t := &Tenant{Name: o.Name, clock: clock, addresses: make(map[crowd.Host]*tenantAddress)}
	for i, limit := range tenantLimitNames {
		t.waits[i] = m.Counter(metrics.TenantWaits, o.Name, limit)
	}
	t.quota.kind, t.quota.most, t.quota.waits = gates.GateTenant, &t.total, t.waits[limitTotal]
	for i, reason := range tenantRefusalNames {
		t.refused[i] = m.Counter(metrics.TenantRefusedConnections, o.Name, reason)
	}
	t.set(o)
	return t
}

// set puts o in force. It returns the rate limits before, whose clients have to be told to follow.
func (t *Tenant) set(o *TenantOptions) (old *gates.Rates) {
	t.current.Store(o)
	for _, x := range []struct {
		at *quotaLimits
		o  *TenantLimits
	}{{&t.total, &o.Total}, {&t.each, &o.Address}} {
		x.at.calls.Store(int64(x.o.Calls))
		x.at.memory.Store(x.o.Memory)
	}
	old = t.rates.Load()
	t.rates.Store(old.Changed(
		gates.NewLimit(gates.GateTenantRate, o.Total.Rate, t.waits[limitTotalRate], t.clock),
		gates.NewLimit(gates.GateTenantAddressRate, o.Address.Rate, t.waits[limitAddressRate], t.clock),
	))
	return old
}

// WeightOf returns the weight that the tenant gives its addresses, or else other.
func (t *Tenant) WeightOf(other int) int {
	if t != nil {
		if w := t.current.Load().Weight; w > 0 {
			return w
		}
	}
	return other
}

// serveAll admits the clients for which there is room after the limits have changed.
func (t *Tenant) serveAll() {
	t.quota.Serve()
	t.mu.Lock()
	var all []*tenantAddress
	for _, a := range t.addresses {
		all = append(all, a)
	}
	t.mu.Unlock()
	for _, a := range all {
		a.quota.Serve()
	}
	t.serveLine()
}

// full returns why the tenant may have no connection more of h. t.mu is held.
func (t *Tenant) full(h crowd.Host) (why TenantRefusal, err error) {
	o := t.current.Load()
	if most := o.Total.Connections; most > 0 && t.clients >= most {
		return tenantFull, fmt.Errorf("%w: tenant %s already has %d connections", errTenant, t.Name, t.clients)
	}
	if a := t.addresses[h]; a != nil && o.Address.Connections > 0 && int(a.clients.Load()) >= o.Address.Connections {
		return tenantAddressFull, fmt.Errorf("%w: its address already has %d connections in tenant %s",
			errTenant, a.clients.Load(), t.Name)
	}
	return 0, nil
}

// Refuse counts a connection that the tenant may not have. It returns the reason as listeners name it.
func (t *Tenant) Refuse(why TenantRefusal) (reason string) {
	t.refused[why].Inc()
	return TenantRefusals[why]
}

// MayJoin returns why no connection from a may come now. It counts a connection that may come for the
// limits of new connections, and for no other. Any goroutine.
func (t *Tenant) MayJoin(a netip.Addr, now int64) (why TenantRefusal, err error) {
	h := crowd.HostOf(a)
	t.mu.Lock()
	why, err = t.full(h)
	t.mu.Unlock()
	if err != nil {
		return why, err
	}
	o := t.current.Load()
	switch t.arrivals.Enter(h, o.Total.ConnectionsRate, o.Address.ConnectionsRate, now) {
	case gates.OverRate:
		return tenantOverRate, fmt.Errorf("%w: tenant %s has more than %d new connections a second",
			errTenant, t.Name, o.Total.ConnectionsRate)
	case gates.OverHostRate:
		return tenantAddressOverRate, fmt.Errorf("%w: its address has more than %d new connections a second in tenant %s",
			errTenant, o.Address.ConnectionsRate, t.Name)
	}
	return 0, nil
}

// join counts a connection from a, which is new unless stays is set: then it has been connected, and no limit
// of connections ends it. It returns nil, and why, if a limit would be exceeded.
func (t *Tenant) join(a netip.Addr, stays bool) (at *tenantAddress, why TenantRefusal, err error) {
	h := crowd.HostOf(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	if why, err = t.full(h); err != nil && !stays {
		return nil, why, err
	}
	at = t.addresses[h]
	if at == nil {
		at = &tenantAddress{id: h, quota: quota{kind: gates.GateTenantAddress, most: &t.each, waits: t.waits[limitAddress]}}
		t.addresses[h] = at
	}
	t.clients++
	at.clients.Add(1)
	return at, 0, nil
}

// leave undoes join for client, whose address is at. It takes the client out of the line, and calls it.
func (t *Tenant) leave(at *tenantAddress, client *gates.Waiter) {
	t.mu.Lock()
	t.clients--
	at.clients.Add(-1)
	t.forget(at)
	var left []lineWait
	t.line = slices.DeleteFunc(t.line, func(w lineWait) bool {
		if w.client == client {
			left = append(left, w)
		}
		return w.client == client
	})
	t.lined.Store(int32(len(t.line)))
	t.mu.Unlock()
	for _, w := range left {
		w.call()
	}
}

// forget removes an address without connections, Calls and memory: an address that connects again must find
// what it has under way counted. t.mu is held.
func (t *Tenant) forget(a *tenantAddress) {
	if calls, octets := a.quota.load(); a.clients.Load() == 0 && calls == 0 && octets == 0 && t.addresses[a.id] == a {
		delete(t.addresses, a.id)
	}
}

// The line

// A lineWait is a connection that waits for memory for an incomplete Call, because of a limit of its tenant.
// These connections wait apart from those that wait for the memory of all, who would have to look at each of
// them again and again.
type lineWait struct {
	client *gates.Waiter
	at     *tenantAddress
	size   int64
	call   func()
}

// mostLined is how many connections that still do not fit serveLine looks at in a row.
const mostLined = 16

// fits reports whether a client, whose address is at, may have a block of size octets for an incomplete Call. Any
// goroutine.
func (t *Tenant) fits(at *tenantAddress, size int64) bool {
	return at.quota.fits(size) && t.quota.fits(size)
}

// wait calls call once, when client, whose address is at, may have a block for n octets, or has left the tenant.
func (t *Tenant) wait(client *gates.Waiter, at *tenantAddress, n int, call func()) {
	t.waits[limitMemory].Inc()
	t.mu.Lock()
	t.line = append(t.line, lineWait{client, at, int64(regmem.BlockSize(n)), call})
	t.lined.Store(int32(len(t.line)))
	t.mu.Unlock()
	t.serveLine() // memory may have been released since
}

// serveLine calls the first connection in line that may have its block. Those that may not have theirs, because their
// address may not, go to the end of the line.
func (t *Tenant) serveLine() {
	if t.lined.Load() == 0 {
		return
	}
	var call func()
	t.mu.Lock()
	for n := min(mostLined, len(t.line)); n > 0 && call == nil; n-- {
		w := t.line[0]
		t.line[0] = lineWait{}
		t.line = t.line[1:]
		if t.fits(w.at, w.size) {
			call = w.call // it may take all that there is; when it has, or has ended, serveLine is called again
		} else {
			t.line = append(t.line, w)
		}
	}
	t.lined.Store(int32(len(t.line)))
	t.mu.Unlock()
	if call != nil {
		call()
	}
}
