package configs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// checkCircles finds endpoints that lead Calls back to the listener that they came from. Such a Call would go
// round until no memory is left. A listener may be an endpoint if its own Calls go elsewhere.
func (c *Config) checkCircles(k Known, r *report) {
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		for j, e := range u.Endpoints {
			path := fmt.Sprintf("upstreams[%d].endpoints[%d]", i, j)
			if r.has(path) {
				continue
			}
			for _, l := range c.Listeners {
				if u.reaches(e, &l, k) && c.leadsTo(&l, u.Name, k) {
					r.addf(path, "%s is the address of listener %s, whose Calls come to this upstream: they would go round for ever; write the address of the storage", e, l.Name)
					break
				}
			}
		}
	}
}

// leadsTo reports whether Calls of l come to the upstream of that name, also by way of other listeners of
// this bridge.
func (c *Config) leadsTo(l *Listener, name string, k Known) bool {
	seen := make(map[string]bool) // by name of the upstream
	next := l.destinations()
	for len(next) > 0 {
		n := next[0]
		next = next[1:]
		if n == name {
			return true
		}
		if seen[n] {
			continue
		}
		seen[n] = true
		for i := range c.Upstreams {
			u := &c.Upstreams[i]
			if u.Name != n {
				continue
			}
			for j := range c.Listeners {
				o := &c.Listeners[j]
				if slices.ContainsFunc(u.Endpoints, func(e string) bool { return u.reaches(e, o, k) }) {
					next = append(next, o.destinations()...)
				}
			}
		}
	}
	return false
}

// destinations returns the upstreams that Calls of l may go to.
func (l *Listener) destinations() []string {
	names := []string{l.Upstream}
	for _, route := range l.Routes {
		names = append(names, route.Upstream)
	}
	for _, x := range l.Rules {
		names = append(names, x.Upstream)
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == "" })
}

// reaches reports whether an endpoint of u is the listener l. It resolves no name but localhost.
func (u *Upstream) reaches(endpoint string, l *Listener, k Known) bool {
	if u.Transport != l.Transport || u.Provider != l.Provider {
		return false
	}
	host, port, err := net.SplitHostPort(endpoint)
	ownHost, ownPort, ownErr := net.SplitHostPort(l.Address)
	if err != nil || ownErr != nil || port != ownPort || port == "0" {
		return false
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if host == ownHost {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && wildcard(ownHost) && k.hasAddress(a)
}
