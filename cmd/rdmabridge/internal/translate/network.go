package translate

import (
	"net/netip"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
)

// Prefixes translates networks.
func Prefixes(networks []configs.Prefix) (ps []netip.Prefix) {
	for _, p := range networks {
		ps = append(ps, netip.PrefixFrom(p.Addr(), p.Bits()))
	}
	return ps
}

// Source translates the setting source of an upstream.
func Source(u *configs.Upstream) (s reach.Source) {
	if u.Source.Address != "" {
		s.Address = netip.MustParseAddr(u.Source.Address)
	}
	if u.Source.Ports != configs.AnyPort {
		s.Low, s.High = u.Source.Ports.Low, u.Source.Ports.High
	}
	return s
}
