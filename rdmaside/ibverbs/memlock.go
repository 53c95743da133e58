//go:build ibverbs

package ibverbs

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Registered memory is locked, and counts against RLIMIT_MEMLOCK, once for each registration. A
// process with CAP_IPC_LOCK has no limit, with most drivers. The limit is checked when a device is
// first used, because otherwise it would be reached under load.

const rlimitMemlock = 8 // RLIMIT_MEMLOCK

// raiseMemlock raises the limit as far as the process may.
func raiseMemlock() {
	var lim syscall.Rlimit
	if syscall.Getrlimit(rlimitMemlock, &lim) != nil {
		return
	}
	if all := (syscall.Rlimit{Cur: math.MaxUint64, Max: math.MaxUint64}); syscall.Setrlimit(rlimitMemlock, &all) != nil {
		_ = syscall.Setrlimit(rlimitMemlock, &syscall.Rlimit{Cur: lim.Max, Max: lim.Max})
	}
}

// arenas is how many octets the domains of this process register of their arenas: each domain all of
// its own, and the kernel counts memory once for each registration.
var arenas atomic.Uint64

// addArena counts the arena of a domain. removeArena must follow.
func (x *extents) addArena() { arenas.Add(x.octets()) }

func (x *extents) removeArena() { arenas.Add(-x.octets()) }

// memlockNeed is how many octets the process may lock: the arenas of its domains, and one arena again
// for the memory of Calls, which is registered for the peer as well. The domains' arenas are the same
// memory, so no more of it is lent to Calls.
func (x *extents) memlockNeed() uint64 { return arenas.Load() + x.octets() }

// checkMemlock returns an error if the limit is lower than need.
func checkMemlock(device string, q *Quirks, need uint64) error {
	var lim syscall.Rlimit
	if syscall.Getrlimit(rlimitMemlock, &lim) != nil || lim.Cur >= need {
		return nil
	}
	if !q.MemlockOfRoot && mayLock("/proc/self") {
		return nil
	}
	return memlockError(device, lim.Cur, need)
}

func memlockError(device string, limit, need uint64) error {
	return fmt.Errorf("ibverbs: device %s: %w: the limit of locked memory is %d octets, and memory.budget needs %d, for the upstreams and listeners that use ibverbs so far (docs/ibverbs.md has the sum for all): "+
		"set LimitMEMLOCK=%d in the systemd unit or --ulimit memlock=%d of the container, or lower memory.budget",
		device, fabric.ErrLimit, limit, need, need, need)
}

// mayLock reports whether the process has CAP_IPC_LOCK. The capability counts only in the first user
// namespace: in a container with users of its own root seems to have it, and is limited.
func mayLock(proc string) bool {
	ids, err := os.ReadFile(proc + "/uid_map")
	if err != nil || !bytes.Equal(bytes.Join(bytes.Fields(ids), []byte(" ")), []byte("0 0 4294967295")) {
		return false
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(status, []byte("\nCapEff:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	caps, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	const ipcLock = 14 // CAP_IPC_LOCK
	return err == nil && caps>>ipcLock&1 == 1
}
