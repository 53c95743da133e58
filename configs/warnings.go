package configs

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
)

// Warnings says, each with its line, which settings are allowed and perhaps not meant. There are
// none unless Load made c.
func (c *Config) Warnings() []string {
	var texts []string
	for _, w := range c.warnings {
		texts = append(texts, w.String())
	}
	return texts
}

// warn collects the warnings about c, which breaks no rule.
func (c *Config) warn(k Known, r *report) {
	w := &report{files: r.files, source: r.source}
	for i := range c.Listeners {
		c.Listeners[i].warn(fmt.Sprintf("listeners[%d]", i), c, w)
		c.Listeners[i].warnRules(fmt.Sprintf("listeners[%d].rules", i), k, w)
		if len(c.Listeners[i].ProxyProtocol.From) == 0 { // a proxy at an IPv4 address may have clients at IPv6 ones
			warnFamily(fmt.Sprintf("listeners[%d]", i), c.Listeners[i].Address, c.Listeners[i].Allow, w)
		}
	}
	warnFamily("rpcbind", c.RPCBind.Address, c.RPCBind.Allow, w)
	warnFamily("nlm", c.NLM.Address, c.NLM.Allow, w)
	c.NLM.warn(c, w)
	c.warnUnused(w)
	c.warnTLS(k, w)
	c.Handover.warn(k, w)
	w.sort()
	c.warnings = w.problems
}

// warn adds a warning when every user of the clients' hosts gets a privilege that only root has
// there: a server takes Calls from privileged ports for Calls of a kernel, and the bridge sends
// them from such a port for clients that have none. A file that says any has decided this.
func (l *Listener) warn(path string, c *Config, w *report) {
	if l.Privileged == PrivilegedRequired || w.source.given(path+".privileged") {
		return
	}
	names := l.uses()
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		if !names[u.Name] || u.RDMA() || !u.Source.Ports.privileged() {
			continue
		}
		w.addf(path+".privileged", "every user of a client's host can have Calls sent to upstream %s from a privileged port (source.ports: %s), which its server may take for those of the client's root; write required, or any if only trusted hosts can connect",
			u.Name, u.Source.Ports)
		return
	}
}

// warnFamily adds a warning where networks of IPv6 may connect to a server that listens on IPv4 alone. In version 0.1.0
// the address 0.0.0.0 listened on both.
func warnFamily(path, address string, allow []Prefix, w *report) {
	host, port, _ := net.SplitHostPort(address)
	if a, err := netip.ParseAddr(host); err != nil || !a.Is4() {
		return
	}
	for _, n := range allow {
		if n.Addr().Is6() && !n.Addr().Is4In6() {
			w.addf(path+".address", "%s listens on IPv4 alone, so that no client of %s can connect, which allow has; write \"[::]:%s\" for every address of IPv4 and IPv6", address, n, port)
			return
		}
	}
}

// uses returns the names of the upstreams that Calls of l can go to.
func (l *Listener) uses() map[string]bool {
	names := map[string]bool{l.Upstream: true}
	for i := range l.Routes {
		names[l.Routes[i].Upstream] = true
	}
	for i := range l.Rules {
		names[l.Rules[i].Upstream] = true
	}
	return names
}

// warnUnused adds a warning for each upstream that no Call can go to. Often it is for a program whose route is missing.
func (c *Config) warnUnused(w *report) {
	names := make(map[string]bool)
	for i := range c.Listeners {
		maps.Copy(names, c.Listeners[i].uses())
	}
	for i := range c.Upstreams {
		if name := c.Upstreams[i].Name; !names[name] {
			w.addf(fmt.Sprintf("upstreams[%d].name", i), "nothing uses upstream %s; a listener sends Calls to it with upstream: %s, or those of one program with routes: [{program: mount, upstream: %s}]", name, name, name)
		}
	}
}
