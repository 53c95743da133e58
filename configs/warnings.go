package configs

import "fmt"

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
	}
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
	names := make(map[string]bool)
	names[l.Upstream] = true
	for _, route := range l.Routes {
		names[route.Upstream] = true
	}
	for _, x := range l.Rules {
		names[x.Upstream] = true
	}
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
