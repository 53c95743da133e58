package doctor

import (
	"strconv"
	"strings"
)

// A Limit is a resource limit of this process.
type Limit struct{ Soft, Hard Amount }

// allows reports whether the limit, which the process may raise to its hard one, allows n.
func (l Limit) allows(n uint64) bool { return uint64(l.Hard) >= n }

// The numbers of capabilities: linux/capability.h.
const (
	capNetBindService = 10
	capIPCLock        = 14
)

// A Process is what the kernel says of this process.
type Process struct {
	User         int    // the effective user; -1 if that is not known
	Capabilities uint64 // in effect
	Pinned       uint64 // octets of memory that are registered with RDMA devices
	LockedMemory Limit  // RLIMIT_MEMLOCK
	Descriptors  Limit  // RLIMIT_NOFILE
	Unprivileged uint64 // the first port that every process may use

	known      bool // RLIMIT_MEMLOCK was there
	namespaced bool // in a user namespace, whose capabilities mean nothing to drivers
}

// can reports whether a capability is in effect.
func (p *Process) can(capability uint) bool { return p.Capabilities>>capability&1 == 1 }

// CanBind reports whether the process may listen at, and connect from, a port.
func (p *Process) CanBind(port uint16) bool {
	return uint64(port) >= p.Unprivileged || p.can(capNetBindService)
}

// examineProcess reads what the kernel says of this process.
func examineProcess(t *tree, fs *Findings) Process {
	p := Process{User: -1, Unprivileged: 1024}
	if n, ok := number(t.text("/proc/sys/net/ipv4/ip_unprivileged_port_start")); ok {
		p.Unprivileged = n
	}
	if f := strings.Fields(t.text("/proc/self/uid_map")); len(f) > 0 {
		p.namespaced = strings.Join(f, " ") != "0 0 4294967295"
	}
	b, err := t.read("/proc/self/limits")
	if err == nil {
		p.parseLimits(string(b))
	}
	if !p.known {
		fs.addf("unreadable", Note, "/proc/self/limits", "The limits of this process are not known: the file has no line for locked memory.")
	}
	if b, err = t.read("/proc/self/status"); err == nil {
		p.parseStatus(string(b))
	}
	return p
}

// parseLimits parses /proc/PID/limits:
//
//	Limit                     Soft Limit           Hard Limit           Units
//	Max locked memory         8388608              8388608              bytes
func (p *Process) parseLimits(s string) {
	for line := range strings.Lines(s) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory "); ok {
			p.LockedMemory, p.known = parseLimit(rest)
		}
		if rest, ok := strings.CutPrefix(line, "Max open files "); ok {
			p.Descriptors, _ = parseLimit(rest)
		}
	}
}

func parseLimit(s string) (l Limit, ok bool) {
	f := strings.Fields(s)
	if len(f) < 2 {
		return l, false
	}
	value := func(s string) (a Amount, ok bool) {
		if s == "unlimited" {
			return noLimit, true
		}
		n, err := strconv.ParseUint(s, 10, 64)
		return Amount(n), err == nil
	}
	var soft, hard bool
	l.Soft, soft = value(f[0])
	l.Hard, hard = value(f[1])
	if !soft || !hard {
		return Limit{}, false
	}
	return l, true
}

// parseStatus parses /proc/PID/status.
func (p *Process) parseStatus(s string) {
	for line := range strings.Lines(s) {
		key, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		switch key {
		case "Uid": // real, effective, saved, file system
			if len(f) > 1 {
				if n, err := strconv.ParseUint(f[1], 10, 32); err == nil {
					p.User = int(n)
				}
			}
		case "CapEff":
			p.Capabilities, _ = strconv.ParseUint(f[0], 16, 64)
		case "VmPin": // kB
			n, _ := strconv.ParseUint(f[0], 10, 64)
			p.Pinned = min(n, 1<<50) << 10
		}
	}
}
