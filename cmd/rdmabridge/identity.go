package main

import (
	"os"
	"slices"
	"strings"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/handover"
)

// machineID names the file that tells this host from all others. It is the same after a restart,
// and is not shown to the network: machine-id(5).
const machineID = "/etc/machine-id"

// identity returns what tells this bridge from others that a server sees at the same address,
// and is the same after a restart. A process that takes over has the identity of the process
// before, so that a changed list of listeners does not change it while Calls are under way.
func identity(c *configs.Config, in *handover.Inheritance) string {
	switch {
	case c.Identity != "":
		return string(c.Identity)
	case in != nil && in.From.Identity != "":
		return in.From.Identity
	}
	return defaultIdentity(c)
}

// defaultIdentity is made of the host name, the machine's id and the addresses of the listeners
// as the file has them. Each may be missing, and none is enough: host names repeat behind NAT,
// containers of one image have one machine-id or none, and sidecars listen at 127.0.0.1.
func defaultIdentity(c *configs.Config) string {
	host, _ := os.Hostname()
	machine, _ := os.ReadFile(machineID)
	all := []string{host, strings.TrimSpace(string(machine))}
	var addresses []string
	for _, l := range c.Listeners {
		addresses = append(addresses, l.Address)
	}
	slices.Sort(addresses) // so that the order in the file does not matter
	return strings.Join(append(all, addresses...), "\n")
}
