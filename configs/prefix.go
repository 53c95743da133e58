package configs

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Prefix is a network such as 10.0.0.0/8, or a single address.
type Prefix struct{ netip.Prefix }

// CheckNetwork returns why s is neither a network nor an address, with what to write, or nil.
func CheckNetwork(s string) error {
	_, err := parsePrefix(s)
	return err
}

// parsePrefix parses a network or an address. It rejects bits beyond the prefix length:
// 10.1.2.3/8 is more often a mistake than intended.
func parsePrefix(s string) (Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return Prefix{netip.PrefixFrom(a, a.BitLen())}, nil
	}
	if len(strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' })) > 1 {
		return Prefix{}, fmt.Errorf("%q has several networks; write a comma between the entries of a list", s)
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return Prefix{}, fmt.Errorf("%q is neither a network nor an address; write one such as 10.0.0.0/8 or 192.0.2.7", s)
	}
	if m := p.Masked(); m != p {
		return Prefix{}, fmt.Errorf("%q has bits set beyond its length; write %s", s, m)
	}
	return Prefix{p}, nil
}
