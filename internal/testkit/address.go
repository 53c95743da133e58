package testkit

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
)

// ports counts the ports that FreeAddr has tried.
var ports atomic.Int64

// FreeAddr returns an address of TCP and UDP at which no socket listens. Its port is
// below 32768, from where Linux chooses the ports of sockets that do not ask for one, so
// that no other socket gets it by chance. FreeAddr returns each address once, and
// processes with other ids begin elsewhere.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 1000 {
		n := 64*int64(os.Getpid()) + ports.Add(1)
		addr := fmt.Sprintf("127.0.0.1:%d", 10240+n%(32768-10240))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		u, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		u.Close()
		return addr
	}
	t.Fatal("no port is free")
	return ""
}

// DeadAddr returns an address at which no server answers until the test ends: a socket
// that does not listen is bound to it.
func DeadAddr(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
}
