package configs

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// NLM is the lock manager for clients of NFSv3, programs 100021 and 100024.
type NLM struct {
	Address    string   `mapstructure:"address"`     // host:port for TCP and UDP, or none
	Server     string   `mapstructure:"server"`      // name or address of the storage
	ServerPort int      `mapstructure:"server_port"` // of its lock manager; 0 asks its rpcbind
	Name       string   `mapstructure:"name"`        // what the server and clients know the bridge by; "": the host's name
	State      string   `mapstructure:"state"`       // directory, or none; "": the state directory of a systemd unit, or none
	Mount      string   `mapstructure:"mount"`       // udp: answers MOUNT over UDP, too; none or ""
	Allow      []Prefix `mapstructure:"allow"`       // who may send anything, beside the server; empty: all
}

// Enabled reports whether the file asks for the lock manager.
func (n *NLM) Enabled() bool { return n.Address != none }

// InMemory reports whether the file says that nothing is to be written.
func (n *NLM) InMemory() bool { return n.State == none }

// OffersMount reports whether the lock manager answers MOUNT over UDP.
func (n *NLM) OffersMount() bool { return n.Mount == mountUDP }

const mountUDP = "udp"

// What the lock manager answers.
const (
	programNLM = 100021
	programNSM = 100024
)

// maxHostName is that of DNS. NLM and NSM have room for 1024 octets.
const maxHostName = 255

func (n *NLM) validate(c *Config, k Known, r *report) {
	if !n.Enabled() {
		r.needs("nlm", "nlm.address", "server", "server_port", "name", "state", "mount", "allow")
		return
	}
	r.listenAddress("nlm.address", n.Address, portNLM)
	if r.required("nlm.server", n.Server, "10.1.0.5") {
		if why := badServer(n.Server, "server_port", "lock manager"); why != "" {
			r.addf("nlm.server", "%s", why)
		}
	}
	r.atMost("nlm.server_port", n.ServerPort, 65535)
	if badHost(n.Name) != "" || len(n.Name) > maxHostName {
		r.addf("nlm.name", "%q is not the name of a host; write one such as bridge.example", n.Name)
	}
	r.oneOf("nlm.mount", n.Mount, none, mountUDP)
	n.checkRoutes(c, k, r)
	if !n.InMemory() && n.State != "" && !filepath.IsAbs(n.State) && !r.has("nlm.state") {
		r.addf("nlm.state", "%q is not an absolute path; write that of a directory, such as /var/lib/rdmabridge, or none", n.State)
	}
}

// checkRoutes rejects routes for what the lock manager does: clients would find one of the two, and it cannot free locks
// that it does not know.
func (n *NLM) checkRoutes(c *Config, k Known, r *report) {
	for i := range c.Listeners {
		for j, route := range c.Listeners[i].Routes {
			if p, _ := k.ResolveProgram(route.Program); p == programNLM || p == programNSM {
				r.addf(fmt.Sprintf("listeners[%d].routes[%d].program", i, j), "nlm.address answers this program; remove the route")
			}
		}
	}
}

// badServer returns why a host cannot be the storage, or "". setting is that of the port of a program there.
func badServer(host, setting, program string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		if wildcard(host) {
			return host + " stands for every address of a host; write the one of the storage"
		}
		return ""
	}
	if name, port, found := strings.Cut(host, ":"); found {
		return host + " is not the name or the address of a host; write " + orHost(name) + ", and " + setting + ": " + port + " if the storage's rpcbind does not know the port of its " + program
	}
	return badHost(host)
}

// warn adds a warning where nobody can find the lock manager.
func (n *NLM) warn(c *Config, w *report) {
	if n.Enabled() && !c.RPCBind.Enabled() {
		w.addf("nlm.address", "clients, and the storage's lock manager, ask the bridge's port 111 where its lock manager is, and rpcbind.address is none; write rpcbind: {address: \"0.0.0.0:111\"}")
	}
}
