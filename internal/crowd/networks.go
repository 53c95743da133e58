package crowd

import (
	"net/netip"
	"slices"
)

// Unmapped returns networks with IPv4 networks as such and without the bits of hosts.
func Unmapped(networks []netip.Prefix) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(networks))
	for _, p := range networks {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		all = append(all, p.Masked())
	}
	return all
}

// Within reports whether one of networks, which Unmapped has returned, has a.
func Within(networks []netip.Prefix, a netip.Addr) bool {
	a = a.WithZone("")
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}
