package configs

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
)

// A callKind is the Calls of one version of one program. Routes, and rules with an upstream, tell Calls apart by it.
type callKind struct {
	program, version uint32
	// name is what the configuration calls the program, "" for programs that it does not name. The Calls of such a
	// program go where no route is.
	name Program
}

// checkCircles finds endpoints that lead Calls back to the listener that they came from. Such a Call would go
// round until no memory is left. A listener may be an endpoint if its own Calls go elsewhere, such as those of
// another program.
func (c *Config) checkCircles(k Known, r *report) {
	kinds := c.callKinds(k)
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		for j, e := range u.Endpoints {
			path := fmt.Sprintf("upstreams[%d].endpoints[%d]", i, j)
			if r.has(path) {
				continue
			}
			for _, l := range c.Listeners {
				if !u.reaches(e, &l, k) {
					continue
				}
				n := slices.IndexFunc(kinds, func(kind callKind) bool { return c.leadsTo(&l, u.Name, kind, k) })
				if n < 0 {
					continue
				}
				calls := "Calls"
				if kinds[n].name != "" {
					calls = fmt.Sprintf("Calls of program %s", kinds[n].name)
				}
				r.addf(path, "%s is the address of listener %s, whose %s come to this upstream: they would go round for ever; write the address of the storage", e, l.Name, calls)
				break
			}
		}
	}
}

// callKinds returns a kind for everything that routes and rules tell apart. The first one is a program that none of
// them names.
func (c *Config) callKinds(k Known) []callKind {
	programs := []Program{""}
	versions := []uint32{math.MaxUint32}
	for i := range c.Listeners {
		for _, route := range c.Listeners[i].Routes {
			programs = append(programs, route.Program)
			versions = append(versions, route.Versions...)
		}
		for _, x := range c.Listeners[i].Rules {
			programs = append(programs, x.Programs...)
			versions = append(versions, x.Versions...)
		}
	}
	slices.Sort(versions)
	versions = slices.Compact(versions)
	slices.Reverse(versions) // the version that nobody names comes first
	var kinds []callKind
	seen := make(map[uint32]bool)
	for _, p := range programs {
		n := uint32(math.MaxUint32)
		if p != "" {
			var err error
			if n, err = k.ResolveProgram(p); err != nil {
				continue // reported where it is written
			}
		}
		if seen[n] {
			continue
		}
		seen[n] = true
		for _, v := range versions {
			kinds = append(kinds, callKind{n, v, p})
		}
	}
	return kinds
}

// leadsTo reports whether Calls of a kind come from l to the upstream of that name, also by way of other listeners of
// this bridge.
func (c *Config) leadsTo(l *Listener, name string, kind callKind, k Known) bool {
	seen := make(map[string]bool) // by name of the upstream
	next := l.destinations(kind, k)
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
					next = append(next, o.destinations(kind, k)...)
				}
			}
		}
	}
	return false
}

// destinations returns the upstreams that Calls of a kind may go to: that of the route, and those of rules, which
// may also depend on the client.
func (l *Listener) destinations(kind callKind, k Known) []string {
	is := func(p Program) bool {
		n, err := k.ResolveProgram(p)
		return err == nil && n == kind.program
	}
	has := func(versions []uint32) bool { return len(versions) == 0 || slices.Contains(versions, kind.version) }
	names := []string{l.Upstream}
	if i := slices.IndexFunc(l.Routes, func(r Route) bool { return is(r.Program) && has(r.Versions) }); i >= 0 {
		names[0] = l.Routes[i].Upstream
	}
	for _, x := range l.Rules {
		if (len(x.Programs) == 0 || slices.ContainsFunc(x.Programs, is)) && has(x.Versions) {
			names = append(names, x.Upstream)
		}
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
	return err == nil && covers(ownHost, host) && k.hasAddress(a)
}
