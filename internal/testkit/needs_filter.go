package testkit

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// NeedsFilter skips the test where this user may not give a socket a filter, by which packets get lost.
func NeedsFilter(t testing.TB) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rc, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	if e := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	}); e != nil {
		t.Fatal(e)
	}
	if err == unix.EPERM {
		t.Skip("this user may not lose the packets of a socket: SO_ATTACH_FILTER")
	}
}
