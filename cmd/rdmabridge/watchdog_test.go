package main

import (
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// notifySocket is the service manager that this test's process has.
func notifySocket(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return l
}

func heard(t *testing.T, l *net.UnixConn, within time.Duration) string {
	t.Helper()
	b := make([]byte, 64)
	_ = l.SetReadDeadline(time.Now().Add(within))
	n, _ := l.Read(b)
	return string(b[:n])
}

// TestWatchdog: a bridge whose loops answer says so again and again.
func TestWatchdog(t *testing.T) {
	l := notifySocket(t)
	t.Setenv("WATCHDOG_USEC", "200000")
	t.Setenv("WATCHDOG_PID", "")
	_, signals, wait := startServe(t, minimalConfig)
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := heard(t, l, testkit.Patience); got != want {
			t.Errorf("systemd hears %q, want %q", got, want)
		}
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// TestWatchdogExpires: the service manager hears nothing more when a loop does not answer.
func TestWatchdogExpires(t *testing.T) {
	l := notifySocket(t)
	t.Setenv("WATCHDOG_USEC", "40000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(syscall.Getpid()))
	var asked atomic.Int32
	stop := keepWatchdog(zerolog.Nop(), func(stop <-chan struct{}) bool {
		if asked.Add(1) == 1 {
			return true
		}
		<-stop
		return false
	})
	defer stop()
	if got := heard(t, l, testkit.Patience); got != "WATCHDOG=1" {
		t.Fatalf("systemd hears %q", got)
	}
	if got := heard(t, l, 200*time.Millisecond); got != "" {
		t.Errorf("systemd hears %q of a loop that hangs", got)
	}
	if asked.Load() != 2 {
		t.Errorf("the loops were asked %d times, want twice", asked.Load())
	}
}

// TestNoWatchdog: the loops are not asked on behalf of nobody, of another process, or of a limit that is no number.
func TestNoWatchdog(t *testing.T) {
	for _, c := range []struct{ usec, pid string }{
		{"", ""},
		{"40000", "1"},
		{"-1", ""},
		{"soon", ""},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		keepWatchdog(zerolog.Nop(), func(<-chan struct{}) bool {
			t.Errorf("%q of %q: the loops are asked", c.usec, c.pid)
			return false
		})()
	}
}
