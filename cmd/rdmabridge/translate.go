package main

import (
	"net/netip"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
)

// prefixes translates networks.
func prefixes(networks []configs.Prefix) (ps []netip.Prefix) {
	for _, p := range networks {
		ps = append(ps, netip.PrefixFrom(p.Addr(), p.Bits()))
	}
	return ps
}

// proxySource translates the setting source of an upstream.
func proxySource(u *configs.Upstream) (s reach.Source) {
	if u.Source.Address != "" {
		s.Address = netip.MustParseAddr(u.Source.Address)
	}
	if u.Source.Ports != configs.AnyPort {
		s.Low, s.High = u.Source.Ports.Low, u.Source.Ports.High
	}
	return s
}

// logSettings translates the settings of the log.
func logSettings(c configs.Log) logsink.Settings {
	return logsink.Settings{Level: c.Level, Console: c.Format == configs.FormatConsole}
}
