package loop

import (
	"context"
	"net"
	"net/netip"
)

// Listen returns a TCP socket that listens at address, host:port. It listens on IPv4 alone where the host is an IPv4
// address. The connections that it accepts have no keepalive probes: who accepts them asks for those.
func Listen(address string) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	ln, err := lc.Listen(context.Background(), Network("tcp", address), address)
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

// Network returns transport, "tcp" or "udp", as the network for listening at address: with a 4 where the host is 0.0.0.0.
// Without the 4, package net takes that for every address of IPv6, too, and whoever writes 0.0.0.0 to keep IPv6 out would
// not know. [::] and no host are every address of both families.
func Network(transport, address string) string {
	host, _, _ := net.SplitHostPort(address)
	if a, err := netip.ParseAddr(host); err == nil && a == netip.IPv4Unspecified() {
		return transport + "4"
	}
	return transport
}
