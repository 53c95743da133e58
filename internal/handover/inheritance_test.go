package handover

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// listenAs listens at path as the user uid. Only this thread changes its user, and only for as
// long as the kernel needs to note it.
func listenAs(t *testing.T, path string, uid int) *net.UnixListener {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	const same = ^uintptr(0)
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uintptr(uid), same); e != 0 {
		t.Fatal(e)
	}
	err = syscall.Listen(fd, 8)
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, same, 0, same); e != 0 {
		panic(e) // the thread has another user than its process
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.UnixListener)
}

// TestTakeOverFromStranger: a process of another user at handover.path gets no greeting, and
// its sockets are not taken.
func TestTakeOverFromStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user as well")
	}
	path := filepath.Join(t.TempDir(), "h.sock")
	l := listenAs(t, path, 65534)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		b := make([]byte, 64)
		if n, _ := c.Read(b); n > 0 {
			t.Errorf("the new process has said %q", b[:n])
			_, _ = c.Write([]byte(`{"version":1,"pid":1}` + "\n"))
		}
	}()
	in, err := TakeOver(path)
	<-done
	if err == nil {
		in.Abandon()
		t.Fatal("the process takes over from another user")
	}
	if !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("error %v, want the user in it", err)
	}
}
