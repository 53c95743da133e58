package proxy

import (
	"fmt"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// TenantOptions describe a group of clients that have limits of their own, whatever listeners they use.
type TenantOptions struct {
	Name    string
	Clients []netip.Prefix // a client belongs to the first tenant that has its address, or a name of its certificate
	Names   []tlsconf.Pattern
	Weight  int          // of each address, instead of the listener's Weights; 0: these count
	Total   TenantLimits // of all clients of the tenant together
	Address TenantLimits // of each address of the tenant
}

// TenantLimits bound clients together. Zero values are no limit.
type TenantLimits struct {
	Connections     int
	ConnectionsRate int   // new connections a second
	Calls           int   // under way: read, and neither answered nor given up
	Memory          int64 // octets that Calls under way, their Replies and incomplete Calls take
	Rate            Rate
}

// check reports every setting that cannot work.
func (o *TenantOptions) check() error {
	c := checker{what: fmt.Sprintf("proxy: tenant %q: ", o.Name)}
	c.that(len(o.Clients)+len(o.Names) > 0, "has no clients")
	c.that(o.Weight >= 0, "has a negative Weight")
	for _, l := range []TenantLimits{o.Total, o.Address} {
		c.that(l.Connections >= 0 && l.ConnectionsRate >= 0 && l.Calls >= 0 && l.Memory >= 0 && l.Rate.Calls >= 0 && l.Rate.Octets >= 0, "has a negative limit")
	}
	return c.err
}

// has reports whether the client at a, whose certificate says who it is, belongs to the tenant. who is nil for a
// client without one, or without TLS so far.
func (o *TenantOptions) has(a netip.Addr, who *tlsconf.Identity) bool {
	a = a.Unmap().WithZone("")
	for _, p := range o.Clients {
		if p.Contains(a) {
			return true
		}
	}
	for _, p := range o.Names {
		if p.Matches(who) {
			return true
		}
	}
	return false
}
