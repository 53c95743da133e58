package harden

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// noDumps keeps the memory of the process, which has messages and keys, out of core dumps, and away from
// other processes of the same user. The limit stops dumps to files, and PR_SET_DUMPABLE those to
// programs, too. What the process reads below /proc/self it can still read.
func noDumps() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	if limit.Cur != 0 { // where it is 0, setrlimit may be refused
		limit.Cur = 0
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
			return fmt.Errorf("setrlimit: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	return nil
}
