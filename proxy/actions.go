package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// errOperator closes the connection of a client because an operator wants it.
var errOperator = errors.New("proxy: closed by an operator")

// Eject takes an endpoint of an upstream out of use for a time, or until Return if d is 0. Its connections are
// replaced one after the other when their Calls are answered. It fails for the last endpoint, and for an
// upstream whose clients belong to one endpoint each. Any goroutine.
func (p *Proxy) Eject(upstream, endpoint string, d time.Duration) error {
	u, err := p.find(upstream)
	if err != nil {
		return err
	}
	return u.Endpoints.Eject(endpoint, d)
}

// Return ends the ejection of an endpoint. Any goroutine.
func (p *Proxy) Return(upstream, endpoint string) error {
	u, err := p.find(upstream)
	if err != nil {
		return err
	}
	return u.Endpoints.Return(endpoint)
}

// find returns the upstream that a configuration calls name.
func (p *Proxy) find(name string) (*upstream.Upstream, error) {
	if u := p.upstreamNamed(name); u != nil {
		return u, nil
	}
	return nil, fmt.Errorf("there is no upstream %q", name)
}

// Disconnect closes the connections of the clients who, which is an address with its port, an address, or a
// network such as 192.0.2.0/24, and returns how many. Clients connect again and send their Calls again.
// reason is for the log. Any goroutine.
func (p *Proxy) Disconnect(who, reason string) (n int, err error) {
	match, err := clientsAt(who)
	if err != nil {
		return 0, err
	}
	for _, l := range p.AllListeners() {
		closed := 0
		for _, f := range l.AllClients() {
			if match(f.Peer()) {
				closed++
				f.Close(errOperator)
			}
		}
		if n += closed; closed > 0 {
			l.Log.Warn().Str("event", "client_disconnected").Str("clients", who).Int("connections", closed).
				Str("reason", reason).
				Msg("clients closed by an operator")
		}
	}
	return n, nil
}

// clientsAt returns the clients that who means.
func clientsAt(who string) (func(netip.AddrPort) bool, error) {
	who = strings.TrimSpace(who)
	if a, err := netip.ParseAddrPort(who); err == nil {
		return func(peer netip.AddrPort) bool {
			return peer.Port() == a.Port() && peer.Addr().Unmap() == a.Addr().Unmap()
		}, nil
	}
	if a, err := netip.ParseAddr(who); err == nil {
		return func(peer netip.AddrPort) bool { return peer.Addr().Unmap() == a.Unmap() }, nil
	}
	if net, err := netip.ParsePrefix(who); err == nil {
		net = net.Masked()
		return func(peer netip.AddrPort) bool { return net.Contains(peer.Addr().Unmap()) }, nil
	}
	return nil, fmt.Errorf("%q is no address with a port, address or network; write one such as 10.1.0.7:801, 10.1.0.7 or 10.0.0.0/8", who)
}
