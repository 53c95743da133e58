package handover

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// Program is the path by which this process was started. It is resolved at the start
// but not to an inode, so a successor runs the binary that is installed there by then.
var Program = func() string {
	p, err := exec.LookPath(os.Args[0])
	if err != nil {
		return os.Args[0]
	}
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}()

// A Successor starts the process that will take over from this process. At most one is running
// at a time.
type Successor struct{ running atomic.Bool }

// Start starts Program with the command line of this process and --takeover, unless it could not run, for the
// reason in cannot.
func (s *Successor) Start(log zerolog.Logger, cannot error) {
	if cannot != nil {
		log.Error().Str("event", "successor_failed").Err(cannot).Msg("successor not started; this process continues")
		return
	}
	if !s.running.CompareAndSwap(false, true) {
		log.Warn().Str("event", "signal_ignored").Msg("SIGUSR2 ignored: a successor is already starting")
		return
	}
	args := slices.Clone(os.Args[1:])
	if !slices.Contains(args, "--takeover") {
		args = append(args, "--takeover")
	}
	cmd := exec.Command(Program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// The watchdog is to watch whichever process is the main one: watchdogTime.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "WATCHDOG_PID=") })
	exited := cmd.Wait
	if siblingsCanBeAwaited() {
		exited = startsSibling(cmd)
	}
	if err := cmd.Start(); err != nil {
		s.running.Store(false)
		log.Error().Str("event", "successor_failed").Err(err).Msg("successor not started; this process continues")
		return
	}
	log.Info().Str("event", "successor_started").Int("other_pid", cmd.Process.Pid).Str("program", Program).Msg("successor started")
	go func() {
		// After a hand-over this process exits before its successor does.
		err := exited()
		s.running.Store(false)
		log.Error().Str("event", "successor_failed").Int("other_pid", cmd.Process.Pid).Err(err).Msg("successor exited; this process continues")
	}()
}

// siblingsCanBeAwaited reports whether the successor is to be a child of the service manager, and can be. The manager
// learns how a main process ends, and gives it the time to end, only if that is a child of its own: systemd sends
// any other SIGKILL at once after SIGTERM or SIGABRT if the unit has no further process. A process that is the first
// of its container has no parent.
func siblingsCanBeAwaited() bool {
	if os.Getenv("NOTIFY_SOCKET") == "" || os.Getpid() == 1 {
		return false
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0) // Linux 5.3
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// startsSibling makes cmd start a process whose parent is this process's. Call the function that it returns once, after
// cmd.Start has succeeded: it waits until the process has exited. Only its parent learns the status.
func startsSibling(cmd *exec.Cmd) (exited func() error) {
	fd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT, PidFD: &fd}
	return func() error {
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err != unix.EINTR {
				return err
			}
		}
	}
}
