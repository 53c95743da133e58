package doctor

import "fmt"

// judgeLockedMemory compares RLIMIT_MEMLOCK with the memory that a provider over verbs registers.
//
// Registered memory is locked, and the kernel counts it for each process by itself; memory that is
// registered twice counts twice. Drivers over ib_umem, which are all of
// adapters and rxe, do not apply the limit to a process with CAP_IPC_LOCK. siw applies it to all.
func (h *Host) judgeLockedMemory(n Need, fs *Findings) {
	p := &h.Process
	if !p.known || n.Memory == 0 || len(h.Devices) == 0 {
		return
	}
	siw := false
	for i := range h.Devices {
		siw = siw || h.Devices[i].Driver == "siw" && h.Devices[i].active()
	}
	need := n.Memory
	if p.LockedMemory.allows(need) {
		return
	}
	have := p.LockedMemory.Hard.octets()
	fix := []string{
		fmt.Sprintf("systemctl edit rdmabridge   # and write: [Service] LimitMEMLOCK=%d", need),
		fmt.Sprintf("echo '* hard memlock %d' >> /etc/security/limits.conf   # for logins; in KiB", (need+1023)/1024),
		fmt.Sprintf("docker run --ulimit memlock=%d ...", need),
	}
	severity := Note // nobody has asked for it
	exempt := p.can(capIPCLock) && !p.namespaced
	if !exempt || siw {
		if n.Verbs {
			severity = Error
		}
		why := "This process has no CAP_IPC_LOCK, which would exempt it."
		switch {
		case p.can(capIPCLock) && p.namespaced:
			why = "This process has CAP_IPC_LOCK in a user namespace only, as root has in some containers, and drivers do not count that."
		case exempt:
			why = "This process has CAP_IPC_LOCK, from which siw exempts nobody: other drivers would not apply the limit to it."
		}
		fs.Add("locked-memory", severity, "RLIMIT_MEMLOCK",
			fmt.Sprintf("The hard limit is %s, and a provider over verbs may register %s. %s", have, size(need), why), fix...)
		return
	}
	if n.Verbs {
		severity = Warning
	}
	fs.Add("locked-memory-capability", severity, "RLIMIT_MEMLOCK",
		fmt.Sprintf("The hard limit is %s, less than the %s that a provider over verbs may register. This process has CAP_IPC_LOCK and is not held to it. A bridge of another user, or in a container without that capability, is.", have, size(need)),
		append([]string{"setpriv --reuid=rdmabridge --clear-groups --inh-caps=-all rdmabridge doctor   # as the bridge's user"}, fix...)...)
}
