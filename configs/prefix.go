package configs

import (
	"fmt"
	"net/netip"
)

// A Prefix is a network, 10.0.0.0/8, or one address.
type Prefix struct{ netip.Prefix }

// parsePrefix reads a network or an address. Bits behind the prefix length are
// refused: 10.1.2.3/8 is more often a slip than a wish.
func parsePrefix(s string) (Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return Prefix{netip.PrefixFrom(a, a.BitLen())}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return Prefix{}, fmt.Errorf("%q is neither a network nor an address; write 10.0.0.0/8 or 192.0.2.7", s)
	}
	if m := p.Masked(); m != p {
		return Prefix{}, fmt.Errorf("%q has bits set behind its length; write %s", s, m)
	}
	return Prefix{p}, nil
}
