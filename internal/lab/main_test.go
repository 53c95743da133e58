package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
)

// inLabNamespace is set in the environment of the process with the lab's network.
const inLabNamespace = "RDMABRIDGE_LAB_NAMESPACE"

// TestMain runs the lab, its guest and its bridges in a network namespace: a loopback
// interface on which port 111 is free and no other program has ports.
func TestMain(m *testing.M) {
	if os.Getenv("RDMABRIDGE_LAB") != "1" {
		os.Exit(run(m))
	}
	if os.Getenv(inLabNamespace) == "" {
		os.Exit(inNewNetwork())
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "ip link set lo up: %v\n%s", err, out)
		os.Exit(1)
	}
	os.Exit(run(m))
}

// run runs the tests and returns the exit status. It removes the programs that they have built.
func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "rdmabridge-lab-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	return m.Run()
}

// inNewNetwork runs this program again in a new network namespace and returns its exit
// status. A user other than root needs a user namespace, too.
func inNewNetwork() int {
	runtime.LockOSThread() // Pdeathsig takes effect when this thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), inLabNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "a network namespace for the lab: %v\n", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // an error means that it has ended, and then this process ends, too
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
