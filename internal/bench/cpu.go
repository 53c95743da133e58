package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Processes are the ids of processes whose CPU time is measured.
type Processes []int

// Family returns p and all their children at the moment, such as the workers of a server
// that forks.
func (p Processes) Family() Processes {
	var all Processes
	seen := make(map[int]bool)
	for queue := append(Processes(nil), p...); len(queue) > 0; queue = queue[1:] {
		pid := queue[0]
		if seen[pid] {
			continue
		}
		seen[pid] = true
		all = append(all, pid)
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is well formed
		for _, l := range lists {
			b, err := os.ReadFile(l)
			if err != nil {
				continue // the thread has ended
			}
			for f := range strings.FieldsSeq(string(b)) {
				if child, err := strconv.Atoi(f); err == nil {
					queue = append(queue, child)
				}
			}
		}
	}
	return all
}

// CPU returns the CPU time that p have used, in user space and in the kernel.
func (p Processes) CPU() (time.Duration, error) {
	var total time.Duration
	for _, pid := range p {
		d, err := processCPU(pid)
		if err != nil {
			return 0, err
		}
		total += d
	}
	return total, nil
}

// maxPID is the kernel's PID_MAX_LIMIT.
const maxPID = 1 << 22

// processCPU reads the CPU clock of a process. It is exact to the nanosecond, while
// /proc/PID/stat counts in ticks of 10 ms. Both are utime+stime, and include threads
// that have ended.
func processCPU(pid int) (time.Duration, error) {
	if pid <= 0 || pid > maxPID {
		return 0, fmt.Errorf("CPU time: process id %d is out of range; write 1 to %d", pid, maxPID)
	}
	// CPUCLOCK_SCHED of a thread group; clock_getcpuclockid(3).
	const sched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &ts); err == nil {
		return time.Duration(ts.Nano()), nil
	}
	return statCPU(pid)
}

// statCPU reads utime and stime of /proc/PID/stat.
func statCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("CPU time: %w", err)
	}
	// The second field is the command in parentheses and may contain any character.
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 13 {
		return 0, fmt.Errorf("CPU time: /proc/%d/stat has another format than proc(5) describes", pid)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("CPU time: %w", err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Go runs on Linux
	return time.Duration(user+system) * tick, nil
}
