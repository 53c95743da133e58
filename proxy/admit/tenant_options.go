package admit

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
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
	Rate            gates.Rate
}

// check reports every setting that cannot work.
func (o *TenantOptions) check() error {
	var errs []error
	that := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, fmt.Errorf("proxy: tenant %q: %s", o.Name, problem))
		}
	}
	that(len(o.Clients)+len(o.Names) > 0, "has no clients")
	that(o.Weight >= 0, "has a negative Weight")
	for _, l := range []TenantLimits{o.Total, o.Address} {
		least := min(int64(l.Connections), int64(l.ConnectionsRate), int64(l.Calls), l.Memory, int64(l.Rate.Calls), l.Rate.Octets)
		that(least >= 0, "has a negative limit")
	}
	return errors.Join(errs...)
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
