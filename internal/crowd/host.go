package crowd

import "net/netip"

// hostBits is how many bits of an IPv6 address name a host: whoever has one address of a /64 can
// have them all.
const hostBits = 64

// Host returns the address by which the host of a goes: an IPv4 address stands for itself, and
// the low half of an IPv6 address is cleared. The bridge counts all connections of a host as one
// client.
func Host(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a
	}
	p, err := a.Prefix(hostBits)
	if err != nil {
		return a // the zero Addr, which tests use
	}
	return p.Addr()
}
