package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// Tenants
//
// A tenant is a named group of clients with limits of its own, for all its clients together and for each of
// its addresses, whatever listeners they connect to. What one tenant may not have does not matter to others:
// a client that exceeds a limit of Calls, memory or rates is not read from for a while, and a connection that
// exceeds a limit of connections is refused.
//
// A connection is looked at twice. When it has been accepted, admission checks the limits without counting,
// so that a storm costs nothing more than accept and close. When its loop has it, front.enroll counts it, or
// closes it. Where the certificate of a client may decide, its tenant is open at first: it belongs to none until it has
// TLS, or has sent something else than the question for TLS. Then it is a new connection of its tenant, and refused
// like one: front.enrollLate. So nobody waits, before the certificate is seen, because of a tenant that others belong to.
//
// What a client has under way is counted on its own loop, in its membership, and added to two quotas: that of
// the tenant and that of the address. A client without a tenant has no membership, and costs one look at a
// nil pointer in each place.

// A tenant is what the bridge knows of one group. It stays, with what it has counted, while its name stays in
// the configuration. It is safe for concurrent use.
type tenant struct {
	p       *Proxy // constant, as the next
	name    string
	current atomic.Pointer[TenantOptions]
	rates   atomic.Pointer[rates] // nil for none

	quota       quota
	total, each quotaLimits // of quota, and of those of the addresses
	arrivals    arrivals

	counts  []tenantCounts // by loop
	counted tenantCounts   // the sums of those in counts
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
	clients int // guarded by tenant.mu
}

// tenantCounts count the answered Calls of a tenant's clients on one loop.
type tenantCounts struct{ calls, in, out *metrics.Counter }

func newTenantCounts(m *metrics.Registry, tenant string) tenantCounts {
	return tenantCounts{
		m.Counter(metrics.TenantCalls, tenant),
		m.Counter(metrics.TenantBytes, tenant, "in"), m.Counter(metrics.TenantBytes, tenant, "out"),
	}
}

// add counts a.
func (n *tenantCounts) add(a *answered) {
	n.calls.Add(uint64(a.calls))
	n.in.Add(a.in)
	n.out.Add(a.out)
}

// A tenantRefusal is a reason to refuse a connection because of its tenant.
type tenantRefusal uint8

const (
	tenantFull        tenantRefusal = iota // the tenant has as many connections as it may
	tenantAddressFull                      // the address has
	tenantOverRate                         // too many new connections of the tenant come in a second
	tenantAddressOverRate
	tenantRefusals
)

// tenantRefusalNames label the metric of tenants.
var tenantRefusalNames = [tenantRefusals]string{"connections", "connections_per_address", "rate", "rate_per_address"}

// refusedTenant are the reasons of listeners for these refusals.
var refusedTenant = [tenantRefusals]string{
	"tenant_connections", "tenant_connections_per_address", "tenant_connection_rate", "tenant_connection_rate_per_address",
}

var errTenant = errors.New("proxy: a limit of the client's tenant")

func newTenant(p *Proxy, o *TenantOptions) *tenant {
	t := &tenant{p: p, name: o.Name, addresses: make(map[crowd.Host]*tenantAddress)}
	m := p.metrics
	for i, limit := range tenantLimitNames {
		t.waits[i] = m.Counter(metrics.TenantWaits, o.Name, limit)
	}
	t.quota.kind, t.quota.most, t.quota.waits = gateTenant, &t.total, t.waits[limitTotal]
	for i, reason := range tenantRefusalNames {
		t.refused[i] = m.Counter(metrics.TenantRefusedConnections, o.Name, reason)
	}
	t.counted = newTenantCounts(m, o.Name)
	for _, on := range p.loops {
		t.counts = append(t.counts, newTenantCounts(on.metrics, o.Name))
	}
	t.set(o)
	return t
}

// set puts o in force. It returns the rate limits before, whose clients have to be told to follow.
func (t *tenant) set(o *TenantOptions) (old *rates) {
	t.current.Store(o)
	for _, x := range []struct {
		at *quotaLimits
		o  *TenantLimits
	}{{&t.total, &o.Total}, {&t.each, &o.Address}} {
		x.at.calls.Store(int64(x.o.Calls))
		x.at.memory.Store(x.o.Memory)
	}
	old = t.rates.Load()
	t.rates.Store(makeRates(rateLimits{
		all: o.Total.Rate, each: o.Address.Rate, allKind: gateTenantRate, eachKind: gateTenantAddressRate,
		allWaits: t.waits[limitTotalRate], eachWaits: t.waits[limitAddressRate],
	}, old, t.p.engine.Now))
	return old
}

// serveAll admits the clients for which there is room after the limits have changed.
func (t *tenant) serveAll() {
	t.quota.serve()
	t.mu.Lock()
	var all []*tenantAddress
	for _, a := range t.addresses {
		all = append(all, a)
	}
	t.mu.Unlock()
	for _, a := range all {
		a.quota.serve()
	}
	t.serveLine()
}

// full returns why the tenant may have no connection more of h. t.mu is held.
func (t *tenant) full(h crowd.Host) (why tenantRefusal, err error) {
	o := t.current.Load()
	if most := o.Total.Connections; most > 0 && t.clients >= most {
		return tenantFull, fmt.Errorf("%w: tenant %s already has %d connections", errTenant, t.name, t.clients)
	}
	if a := t.addresses[h]; a != nil && o.Address.Connections > 0 && a.clients >= o.Address.Connections {
		return tenantAddressFull, fmt.Errorf("%w: its address already has %d connections in tenant %s", errTenant, a.clients, t.name)
	}
	return 0, nil
}

// admission returns why no connection from a may come now. It counts a connection that may come for the
// limits of new connections, and for no other. Any goroutine.
func (t *tenant) admission(a netip.Addr, now int64) (why tenantRefusal, err error) {
	h := crowd.HostOf(a)
	t.mu.Lock()
	why, err = t.full(h)
	t.mu.Unlock()
	if err != nil {
		return why, err
	}
	o := t.current.Load()
	switch t.arrivals.enter(h, o.Total.ConnectionsRate, o.Address.ConnectionsRate, now) {
	case arrivalOverRate:
		return tenantOverRate, fmt.Errorf("%w: tenant %s has more than %d new connections a second", errTenant, t.name, o.Total.ConnectionsRate)
	case arrivalOverOfHost:
		return tenantAddressOverRate, fmt.Errorf("%w: its address has more than %d new connections a second in tenant %s", errTenant, o.Address.ConnectionsRate, t.name)
	}
	return 0, nil
}

// join counts a connection from a, which is new unless stays is set: then it has been connected, and no limit
// of connections ends it. It returns nil, and why, if a limit would be exceeded.
func (t *tenant) join(a netip.Addr, stays bool) (at *tenantAddress, why tenantRefusal, err error) {
	h := crowd.HostOf(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	if why, err = t.full(h); err != nil && !stays {
		return nil, why, err
	}
	at = t.addresses[h]
	if at == nil {
		at = &tenantAddress{id: h, quota: quota{kind: gateTenantAddress, most: &t.each, waits: t.waits[limitAddress]}}
		t.addresses[h] = at
	}
	t.clients++
	at.clients++
	return at, 0, nil
}

// leave undoes join for m. It takes m out of the line, and calls it.
func (t *tenant) leave(m *membership) {
	t.mu.Lock()
	t.clients--
	m.address.clients--
	t.forget(m.address)
	var calls []func()
	if len(t.line) > 0 {
		t.line = slices.DeleteFunc(t.line, func(w lineWait) bool {
			if w.m == m {
				calls = append(calls, w.call)
			}
			return w.m == m
		})
		t.lined.Store(int32(len(t.line)))
	}
	t.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// forget removes an address without connections, Calls and memory: an address that connects again must find
// what it has under way counted. t.mu is held.
func (t *tenant) forget(a *tenantAddress) {
	if calls, octets := a.quota.load(); a.clients == 0 && calls == 0 && octets == 0 && t.addresses[a.id] == a {
		delete(t.addresses, a.id)
	}
}

// The line

// A lineWait is a connection that waits for memory for an incomplete Call, because of a limit of its tenant.
// These connections wait apart from those that wait for the memory of all, who would have to look at each of
// them again and again.
type lineWait struct {
	m    *membership
	size int64
	call func()
}

// mostLined is how many connections that still do not fit serveLine looks at in a row.
const mostLined = 16

// wait calls call once, when m may have a block for n octets, or has left the tenant.
func (t *tenant) wait(m *membership, n int, call func()) {
	t.waits[limitMemory].Inc()
	t.mu.Lock()
	t.line = append(t.line, lineWait{m, int64(regmem.BlockSize(n)), call})
	t.lined.Store(int32(len(t.line)))
	t.mu.Unlock()
	t.serveLine() // memory may have been released since
}

// serveLine calls the first connection in line that may have its block. Those that may not have theirs, because their
// address may not, go to the end of the line.
func (t *tenant) serveLine() {
	if t.lined.Load() == 0 {
		return
	}
	var calls []func()
	t.mu.Lock()
	for n := min(mostLined, len(t.line)); n > 0; n-- {
		w := t.line[0]
		t.line[0] = lineWait{}
		t.line = t.line[1:]
		if !w.m.fits(w.size) {
			t.line = append(t.line, w)
			continue
		}
		calls = append(calls, w.call)
		break // it may take all that there is; when it has, or has ended, serveLine is called again
	}
	t.lined.Store(int32(len(t.line)))
	t.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// The list

// tenantList returns the tenants in force, in order.
func (p *Proxy) tenantList() []*tenant {
	if l := p.tenants.Load(); l != nil {
		return *l
	}
	return nil
}

// tenantOf returns the tenant of clients at a, whose certificate says who they are, or nil.
func (p *Proxy) tenantOf(a netip.Addr, who *tlsconf.Identity) *tenant {
	for _, t := range p.tenantList() {
		if t.current.Load().has(a, who) {
			return t
		}
	}
	return nil
}

// tenantOpen reports whether a certificate may still make a client at a a member of a tenant, or of another than its
// address does.
func (p *Proxy) tenantOpen(a netip.Addr) bool {
	for _, t := range p.tenantList() {
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

// SetTenants replaces the tenants. Connected clients follow: they are counted for the tenant that has them
// now, and its limits hold for what they do from now on. None of them is closed. After an error nothing has changed.
func (p *Proxy) SetTenants(all []TenantOptions) error {
	if err := checkTenants(all); err != nil {
		return err
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	old := p.tenantList()
	next := make([]*tenant, 0, len(all))
	var replaced []func()
	for i := range all {
		o := all[i]
		o.Clients = slices.Clone(o.Clients)
		j := slices.IndexFunc(old, func(t *tenant) bool { return t.name == o.Name })
		if j < 0 {
			next = append(next, newTenant(p, &o))
			continue
		}
		t := old[j]
		was := t.set(&o)
		replaced = append(replaced, func() { was.replaced(t.rates.Load()); t.serveAll() })
		next = append(next, t)
	}
	p.tenants.Store(&next)
	for _, l := range p.allListeners() {
		l.follow()
	}
	for _, f := range replaced {
		f()
	}
	for _, t := range old {
		if !slices.Contains(next, t) {
			t.rates.Load().replaced(nil) // its gates forget the clients that have left it
			p.metrics.Forget("tenant", t.name)
		}
	}
	return nil
}
