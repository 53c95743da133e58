package testkit

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ProcessMemory returns a field of /proc/PID/status that is a number of kB, in octets: "VmRSS:" is what is resident, and
// "VmHWM:" the most that was resident so far.
func ProcessMemory(pid int, field string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no " + field)
}
