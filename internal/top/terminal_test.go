package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/status/statustest"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A terminal is a pseudo-terminal: the side of the user.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	out    testkit.Log // what the program has written
}

func newTerminal(t *testing.T, width, height int) *terminal {
	t.Helper()
	// Not os.OpenFile: the reading goroutine ends with the descriptor.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	sfd, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, master: os.NewFile(uintptr(fd), "ptmx"), slave: os.NewFile(uintptr(sfd), "pts")}
	x.resize(width, height)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&x.out, x.master)
	}()
	t.Cleanup(func() {
		x.slave.Close()
		x.master.Close()
		<-done
	})
	return x
}

func (x *terminal) resize(width, height int) {
	x.t.Helper()
	raw, err := x.master.SyscallConn()
	if err != nil {
		x.t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)})
	})
	if err != nil {
		x.t.Fatal(err)
	}
}

var styles = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// shows returns the text of the last whole frame.
func (x *terminal) shows() string {
	s := x.out.String()
	i := strings.LastIndex(s, end)
	if i < 0 {
		return ""
	}
	s = s[:i]
	s = s[strings.LastIndex(s, begin)+len(begin):]
	var b strings.Builder
	for l := range strings.SplitSeq(styles.ReplaceAllString(s, ""), "\r\n") {
		b.WriteString(trim(l) + "\n")
	}
	return b.String()
}

func (x *terminal) wait(what string) {
	x.t.Helper()
	testkit.Eventually(x.t, "the terminal shows "+what, func() bool { return strings.Contains(x.shows(), what) })
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) termios() unix.Termios {
	x.t.Helper()
	raw, err := x.slave.SyscallConn()
	if err != nil {
		x.t.Fatal(err)
	}
	var s *unix.Termios
	_ = raw.Control(func(fd uintptr) { s, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err != nil {
		x.t.Fatal(err)
	}
	return *s
}

// start runs top in x, with fetch or with the two documents.
func (x *terminal) start(ctx context.Context, fetch func(context.Context, status.Query) (*status.Document, error)) <-chan any {
	if fetch == nil {
		n := 0
		fetch = func(context.Context, status.Query) (*status.Document, error) {
			n++
			if n == 1 {
				return statustest.Before(), nil
			}
			d := statustest.After()
			d.Time = d.Time.Add(time.Duration(n) * time.Second)
			return d, nil
		}
	}
	done := make(chan any, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- r
			}
		}()
		done <- Run(ctx, x.slave, x.slave, Options{Fetch: fetch, Interval: 10 * time.Millisecond})
	}()
	return done
}

// ended waits for the end of top, and checks that the terminal is as it was.
func (x *terminal) ended(done <-chan any, before unix.Termios) any {
	x.t.Helper()
	select {
	case r := <-done:
		if got := x.termios(); got != before {
			x.t.Errorf("the terminal's settings are %+v, want %+v", got, before)
		}
		testkit.Eventually(x.t, "the terminal leaves the alternate screen", func() bool { return strings.HasSuffix(x.out.String(), leave) })
		return r
	case <-time.After(testkit.Patience):
		x.t.Fatal("top does not end")
		return nil
	}
}

// TestTerminal types keys and looks at the screen.
func TestTerminal(t *testing.T) {
	x := newTerminal(t, 80, 24)
	before := x.termios()
	done := x.start(t.Context(), nil)
	x.wait("WAITS-FOR")
	if !strings.HasPrefix(x.out.String(), enter) {
		t.Errorf("top begins with %q", x.out.String()[:40])
	}
	if x.termios() == before {
		t.Error("the terminal is not raw")
	}
	x.press("2")
	x.wait("nfs4 WRITE")
	x.press("\t")
	x.wait("10.0.0.21:874")
	x.press("/2001:\r")
	x.wait(`filter "2001:"`)
	if strings.Contains(x.shows(), "10.0.0.21:874") {
		t.Error("a client that the filter does not want is shown")
	}
	x.press("\x1b")
	x.wait("10.0.0.21:874")
	x.resize(200, 60)
	_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH)
	x.wait("OLDEST-OP")
	x.press("h")
	x.wait("Columns of connections")
	x.press("q")
	if r := x.ended(done, before); r != nil {
		t.Errorf("top: %v", r)
	}
	if strings.Contains(x.out.String(), "\x1b[2J") || strings.Contains(x.out.String(), "\x1b[K") {
		t.Error("top erases: that flickers")
	}
}

// TestTerminalIsRestored: whatever ends top, the terminal is as before.
func TestTerminalIsRestored(t *testing.T) {
	t.Run("signal", func(t *testing.T) {
		x := newTerminal(t, 80, 24)
		before := x.termios()
		done := x.start(t.Context(), nil)
		x.wait("WAITS-FOR")
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		if r := x.ended(done, before); r != nil {
			t.Errorf("top: %v", r)
		}
	})
	t.Run("control-c", func(t *testing.T) {
		x := newTerminal(t, 80, 24)
		before := x.termios()
		done := x.start(t.Context(), nil)
		x.wait("WAITS-FOR")
		x.press("\x03")
		if r := x.ended(done, before); r != nil {
			t.Errorf("top: %v", r)
		}
	})
	t.Run("context", func(t *testing.T) {
		x := newTerminal(t, 80, 24)
		before := x.termios()
		ctx, cancel := context.WithCancel(t.Context())
		done := x.start(ctx, nil)
		x.wait("WAITS-FOR")
		cancel()
		if r := x.ended(done, before); r != nil {
			t.Errorf("top: %v", r)
		}
	})
	t.Run("first error", func(t *testing.T) {
		x := newTerminal(t, 80, 24)
		before, want := x.termios(), errors.New("no bridge")
		done := x.start(t.Context(), func(context.Context, status.Query) (*status.Document, error) { return nil, want })
		if r := x.ended(done, before); r != want {
			t.Errorf("top: %v", r)
		}
	})
	t.Run("panic", func(t *testing.T) {
		x := newTerminal(t, 80, 24)
		before := x.termios()
		done := x.start(t.Context(), func(context.Context, status.Query) (*status.Document, error) { panic("BUG: on purpose") })
		if r := x.ended(done, before); r != "BUG: on purpose" {
			t.Errorf("top: %v", r)
		}
	})
}

// TestBridgeGoes: while the bridge does not answer, top says so and tries again.
func TestBridgeGoes(t *testing.T) {
	x := newTerminal(t, 100, 30)
	var mu sync.Mutex
	var failure error
	done := x.start(t.Context(), func(context.Context, status.Query) (*status.Document, error) {
		mu.Lock()
		defer mu.Unlock()
		return statustest.After(), failure
	})
	set := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failure = err
	}
	x.wait("WAITS-FOR")
	set(errors.New("it has ended"))
	x.wait("No answer from the bridge; trying again: it has ended")
	set(nil)
	testkit.Eventually(t, "the bridge is back", func() bool { return !strings.Contains(x.shows(), "No answer") })
	x.press("q")
	if r := <-done; r != nil {
		t.Errorf("top: %v", r)
	}
}
