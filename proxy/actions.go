package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// errOperator closes the connection of a client because an operator wants it.
var errOperator = errors.New("proxy: closed by an operator")

// Eject takes an endpoint of an upstream out of use for a time, or until Return if d is 0. Its connections are
// replaced one after the other when their Calls are answered. It fails for the last endpoint, and for an
// upstream whose clients belong to one endpoint each. Any goroutine.
func (p *Proxy) Eject(upstream, endpoint string, d time.Duration) error {
	u, err := p.upstreamNamed(upstream)
	if err != nil {
		return err
	}
	if u.settings().partitioned() {
		return fmt.Errorf("upstream %s: each client belongs to one endpoint, because failover is none", upstream)
	}
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	if err := u.endpoints.health.Eject(endpoint, until); err != nil {
		return fmt.Errorf("upstream %s, endpoint %s: %w", upstream, endpoint, err)
	}
	u.endpoints.eject.Inc()
	u.log.Warn().Str("event", "endpoint_ejected").Str("endpoint", endpoint).Str("reason", "operator").Dur("wait_ms", d).Msg("endpoint ejected by an operator")
	u.renew()
	return nil
}

// Return ends the ejection of an endpoint. Any goroutine.
func (p *Proxy) Return(upstream, endpoint string) error {
	u, err := p.upstreamNamed(upstream)
	if err != nil {
		return err
	}
	was, err := u.endpoints.health.Return(endpoint)
	for _, h := range u.endpoints.apart {
		if w, e := h.Return(endpoint); e == nil {
			was = was || w
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("upstream %s, endpoint %s: %w", upstream, endpoint, err)
	case !was:
		return fmt.Errorf("upstream %s, endpoint %s: it is not ejected", upstream, endpoint)
	}
	u.log.Info().Str("event", "endpoint_returned").Str("endpoint", endpoint).Str("reason", "operator").Msg("endpoint returned by an operator")
	return nil
}

// upstreamNamed returns the upstream that a configuration calls name.
func (p *Proxy) upstreamNamed(name string) (*upstream, error) {
	if u := p.allUpstreams()[name]; u != nil {
		return u, nil
	}
	return nil, fmt.Errorf("there is no upstream %q", name)
}

// renew has the pools of u replace connections to endpoints that are ejected.
func (u *upstream) renew() {
	for _, p := range u.pools {
		p.Renew()
	}
	for _, p := range u.lanePools() {
		p.Renew()
	}
	for _, p := range u.pins.pools() {
		p.Renew()
	}
}

// Disconnect closes the connections of the clients who, which is an address with its port, an address, or a
// network such as 192.0.2.0/24, and returns how many. Clients connect again and send their Calls again.
// reason is for the log. Any goroutine.
func (p *Proxy) Disconnect(who, reason string) (n int, err error) {
	match, err := clientsAt(who)
	if err != nil {
		return 0, err
	}
	for _, l := range p.allListeners() {
		closed := 0
		for _, f := range l.snapshot(false) {
			if match(f.peer) {
				closed++
				f.close(errOperator)
			}
		}
		if n += closed; closed > 0 {
			l.log.Warn().Str("event", "client_disconnected").Str("clients", who).Int("connections", closed).Str("reason", reason).
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
	return nil, fmt.Errorf("%q is no address with a port, address or network", who)
}
