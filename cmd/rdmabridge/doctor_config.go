package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/doctor"
)

// doctorNeed returns what c asks of the host.
func doctorNeed(c *configs.Config) doctor.Need {
	n := doctor.Need{Configured: true}
	users := 0 // upstreams and listeners; each registers the arena
	for i := range c.Upstreams {
		if u := &c.Upstreams[i]; u.RDMA() && u.Provider == configs.ProviderIBVerbs {
			users++
			n.Connections += uint64(u.Pool.Connections*(len(u.Endpoints)-1) + u.Pool.Most())
		}
	}
	for i := range c.Listeners {
		if l := &c.Listeners[i]; l.RDMA() && l.Provider == configs.ProviderIBVerbs {
			users++
		}
	}
	// The memory of Calls with chunks is registered once more: docs/ibverbs.md.
	n.Verbs, n.Memory = users > 0, uint64(c.Memory.Budget)*uint64(max(users, 1)+1)
	return n
}

// judgeConfig compares c with this host: what check and serve warn about, and what they would only
// find out later.
func judgeConfig(c *configs.Config, p *doctor.Process, fs *doctor.Findings) {
	for _, w := range c.Warnings() {
		fs.Add("config-warning", doctor.Warning, "configuration", w)
	}
	if w := tooLittleMemory(c.Memory, configs.MachineMemory()); w != "" {
		fs.Add("memory", doctor.Warning, "memory.budget", w+".",
			"free -m", fmt.Sprintf("docker run --memory=%dm ...   # or lower memory.budget", memoryNeed(c.Memory)/configs.MiB+1))
	}
	judgeDescriptors(c, p, fs)
	judgePorts(c, p, fs)
	for i := range c.Listeners {
		if l := &c.Listeners[i]; l.RDMA() {
			judgeProvider(l.Provider, "listener "+l.Name, fs)
		}
	}
}

// judgeDescriptors compares RLIMIT_NOFILE with the connections of c, as serve does.
func judgeDescriptors(c *configs.Config, p *doctor.Process, fs *doctor.Findings) {
	if p.Descriptors.Hard == 0 {
		return // it is not known
	}
	limit := int(min(p.Descriptors.Hard, 1<<24))
	have, wanted, reserved := clientDescriptors(c, limit), wantedDescriptors(c), reservedDescriptors(c)
	if have >= wanted {
		return
	}
	severity := doctor.Warning
	if reserved > limit {
		severity = doctor.Error
	}
	fs.Add("descriptors", severity, "RLIMIT_NOFILE",
		fmt.Sprintf("The hard limit is %s. The bridge keeps %d for upstreams and itself, so that %d clients fit, and limits.connections of a listener allows %d.", p.Descriptors.Hard, reserved, have, wanted),
		fmt.Sprintf("systemctl edit rdmabridge   # and write: [Service] LimitNOFILE=%d", reserved+wanted),
		fmt.Sprintf("docker run --ulimit nofile=%d ...", reserved+wanted))
}

// judgePorts reports addresses of listeners at which this process may not listen, and ranges of
// source ports that are too small.
func judgePorts(c *configs.Config, p *doctor.Process, fs *doctor.Findings) {
	for i := range c.Listeners {
		judgeListen("listener "+c.Listeners[i].Name, c.Listeners[i].Address, p, fs)
	}
	if c.RPCBind.Enabled() {
		judgeListen("rpcbind", c.RPCBind.Address, p, fs)
	}
	if c.NLM.Enabled() {
		judgeListen("nlm", c.NLM.Address, p, fs)
	}
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		have := int(u.Source.Ports.High) - int(u.Source.Ports.Low) + 1
		want := u.Pool.Most()
		if u.RDMA() || u.Source.Ports == configs.AnyPort || u.Pool.Mode == configs.PoolShared || have >= want {
			continue
		}
		text := fmt.Sprintf("source.ports has %d ports for connections to one server, and pool.connections allows %d, of which half carry sessions. Widen the range, or lower pool.connections to %d.", have, want, max(have/2, 1))
		if u.Pool.Mode == configs.PoolPinned {
			text = fmt.Sprintf("source.ports has %d ports for connections to one server, and pool.connections and pool.pinned allow %d connections. Widen the range, or lower pool.pinned to %d.", have, want, max(have-u.Pool.Connections, 0))
		}
		fs.Add("source-ports", doctor.Warning, "upstream "+u.Name, text)
	}
}

// judgeListen reports an address at which this process may not listen.
func judgeListen(name, address string, p *doctor.Process, fs *doctor.Findings) {
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 || p.CanBind(uint16(port)) {
		return
	}
	fs.Add("privileged-port", doctor.Error, name, fmt.Sprintf("This process may not listen at %s: the port needs CAP_NET_BIND_SERVICE.", address),
		"setcap cap_net_bind_service=ep /usr/local/bin/rdmabridge",
		"systemctl edit rdmabridge   # and write: [Service] AmbientCapabilities=CAP_NET_BIND_SERVICE")
}

// judgeProvider reports whether this build, on this host, has a provider.
func judgeProvider(name, subject string, fs *doctor.Findings) (have bool) {
	if have = slices.Contains(known.Providers, name); !have {
		fs.Add("provider-missing", doctor.Error, subject,
			fmt.Sprintf("The configuration has provider %s, and this build has %v.", name, known.Providers), "rdmabridge version")
		return false
	}
	if err := known.Provider(name); err != nil {
		fs.Add("provider-missing", doctor.Error, subject, fmt.Sprintf("Provider %s cannot be used: %v.", name, err), "apt-get install rdma-core ibverbs-providers")
		return false
	}
	return true
}
