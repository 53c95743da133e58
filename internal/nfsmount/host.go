package nfsmount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/control"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpcbind"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A Host is what mounts need of this host. Tests have their own.
type Host struct {
	Systemd bool      // whether to have the bridge run by systemd
	Program string    // the path of rdmabridge
	Verbose io.Writer // what is done; nil for nothing

	Run        func(ctx context.Context, command ...string) (output string, err error)
	Spawn      func(ctx context.Context, b *Bridge, command []string) error // starts a bridge, which listens then
	Document   func(ctx context.Context, b *Bridge) (*status.Document, error)
	MountTable func() (string, error)
	PortIsFree func(port uint16) bool
	Lookup     func(ctx context.Context, host string) ([]netip.Addr, error)
	MountPort  func(ctx context.Context, storage netip.Addr) (port uint16, err error) // as its rpcbind says; 0 for no MOUNT
	Mount      func(source, dir, kind string, flags uintptr, data string) error
	Unmount    func(dir string, flags int) error
	Lock       func() (unlock func(), err error) // so that one process at a time starts a bridge
}

// runDir is where bridges of this host listen.
const runDir = "/run"

// portRPCBind is where rpcbind is.
const portRPCBind = 111

// ThisHost returns the host that this process runs on.
func ThisHost() (*Host, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, failf(System, "cannot find this program: %v", err)
	}
	if os.Getenv("PATH") == "" { // mount(8) calls helpers without
		_ = os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin") // the name is good
	}
	return &Host{
		Systemd: systemdMounts(), Program: program,
		Run: func(ctx context.Context, command ...string) (string, error) {
			out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
			return string(out), err
		},
		Spawn: spawn,
		Document: func(ctx context.Context, b *Bridge) (*status.Document, error) {
			c := control.NewClient(b.Socket(runDir))
			defer c.Close()
			d := new(status.Document)
			return d, c.Get(ctx, "/api/v1/status?clients=1", d)
		},
		MountTable: MountTable,
		PortIsFree: func(port uint16) bool {
			l, err := net.Listen("tcp4", hostPort(loopback, port))
			if err == nil {
				l.Close()
			}
			return err == nil
		},
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		MountPort: func(ctx context.Context, storage netip.Addr) (uint16, error) {
			return rpcbind.Ask(ctx, hostPort(storage.String(), portRPCBind), oncrpc.ProgramMount, 3)
		},
		Mount: unix.Mount, Unmount: unix.Unmount, Lock: lock,
	}, nil
}

// say writes a command line, if that is wanted.
func (h *Host) say(words ...string) {
	if h.Verbose != nil {
		fmt.Fprintln(h.Verbose, strings.Join(words, " "))
	}
}

// MountTable returns which file systems are mounted.
func MountTable() (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return string(b), err
}

// systemdMounts reports whether services of systemd see the network and the mounts of this process.
func systemdMounts() bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return false
	}
	for _, namespace := range []string{"mnt", "net"} {
		own, err := os.Readlink("/proc/self/ns/" + namespace)
		of, err2 := os.Readlink("/proc/1/ns/" + namespace)
		if err != nil || err2 != nil || own != of {
			return false
		}
	}
	return true
}

// lock waits for the lock that the kernel releases when this process ends at the latest.
func lock() (unlock func(), err error) {
	f, err := os.OpenFile(runDir+"/rdmabridge-mount.lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return func() { f.Close() }, err
}

// startProcess starts a process in a session of its own, with its log in a file. Ended has the process's end.
func startProcess(command []string, log string, environment []string) (ended <-chan error, err error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", environment, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := make(chan error, 1)
	go func() { c <- cmd.Wait() }()
	return c, nil
}
