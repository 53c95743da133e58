package loop_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// TestDuplicate: asking for the descriptor of a duplicate leaves the socket non-blocking, and the duplicate is
// of the same socket.
func TestDuplicate(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := loop.Duplicate(ln.(*net.TCPListener))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_GETFL, 0) // Fd is what makes others blocking
	if errno != 0 || flags&syscall.O_NONBLOCK == 0 {
		t.Errorf("flags %#x, %v; want O_NONBLOCK", flags, errno)
	}
	again, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Addr().String() != ln.Addr().String() {
		t.Errorf("the duplicate listens at %v, want %v", again.Addr(), ln.Addr())
	}
	ln.Close()
	if _, err := loop.Duplicate(ln.(*net.TCPListener)); err == nil {
		t.Error("a closed socket was duplicated")
	}
}
