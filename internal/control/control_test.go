package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/unixsocket"
)

// startServer starts a server that says at /who which process asks.
func startServer(t *testing.T, path string, predecessor int) (*Server, *testkit.Log) {
	t.Helper()
	log := new(testkit.Log)
	s := NewServer(path, zerolog.New(log))
	s.Handle("GET /who", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := PeerOf(r.Context())
		if !ok {
			http.Error(w, "no peer", http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(p)
	}))
	s.Handle("POST /echo", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		_, _ = w.Write(b)
	}))
	s.Handle("POST /refuse", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":"no upstream is named x"}`)
	}))
	if err := s.Start(predecessor); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, log
}

func TestServerAndClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "control.sock")
	startServer(t, path, 0)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files beside the socket", len(entries)-1)
	}
	c := NewClient(path)
	defer c.Close()
	var p unixsocket.Peer
	if err := c.Get(t.Context(), "/who", &p); err != nil || p != (unixsocket.Peer{PID: os.Getpid(), UID: os.Getuid()}) {
		t.Errorf("/who: %+v, %v", p, err)
	}
	var back map[string]int
	if err := c.Post(t.Context(), "/echo", map[string]int{"a": 7}, &back); err != nil || back["a"] != 7 {
		t.Errorf("/echo: %v, %v", back, err)
	}
	var refused *AnswerError
	if err := c.Post(t.Context(), "/refuse", nil, &back); !errors.As(err, &refused) || err.Error() != "no upstream is named x" || refused.Status != http.StatusNotFound {
		t.Errorf("/refuse: %v", err)
	}
	if err := c.Post(t.Context(), "/echo", strings.Repeat("x", maxBody+1), &back); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a long body: %v", err)
	}
	if err := c.Get(t.Context(), "/nothing?a=b", &back); err == nil || !strings.Contains(err.Error(), "has no /nothing: it is of another version") {
		t.Errorf("/nothing: %v", err)
	}
}

// TestSockets: the socket of a dead process is replaced, and that of a living one stays, except that a
// process that takes over replaces its predecessor's.
func TestSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	one, _ := startServer(t, path, 0)

	other := NewServer(path, zerolog.Nop())
	var inUse *InUseError
	if err := other.Start(0); !errors.As(err, &inUse) || inUse.PID != os.Getpid() || inUse.Path != path {
		t.Errorf("a second bridge: %v", err)
	}
	if err := other.Start(os.Getpid() + 1); !errors.As(err, &inUse) {
		t.Errorf("the successor of another process: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}

	two, _ := startServer(t, path, os.Getpid())
	one.StopAccepting()
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	var p unixsocket.Peer
	if err := NewClient(path).Get(t.Context(), "/who", &p); err != nil {
		t.Errorf("after the hand-over: %v", err)
	}
	if err := two.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewServer(path, zerolog.Nop()).Start(0); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file at the path: %v", err)
	}
}

// TestUnreachable: an error says what to do.
func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	speak := func(name, answer string) string {
		return testkit.Serve(t, "unix", filepath.Join(dir, name), func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096)) // the request
			fmt.Fprint(c, answer)
			c.Close()
		})
	}
	for _, tt := range []struct{ path, want string }{
		{filepath.Join(dir, "none.sock"), "start one with rdmabridge serve"},
		{stale, "has ended"},
		{speak("ssh.sock", "SSH-2.0-OpenSSH\r\n"), "does not speak HTTP"},
		{speak("web.sock", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), "another HTTP server"},
		{speak("mute.sock", ""), "does not answer"},
	} {
		var v any
		err := NewClient(tt.path).Get(t.Context(), "/who", &v)
		var u *UnreachableError
		if !errors.As(err, &u) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.path) {
			t.Errorf("%s: %v, want %q", filepath.Base(tt.path), err, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var v any
	if err := NewClient(stale).Get(ctx, "/who", &v); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	one, two, none := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
	if _, err := find(t.Context(), []string{none, one}); err == nil || !strings.Contains(err.Error(), "no bridge listens at "+none+" or "+one) {
		t.Errorf("no bridge: %v", err)
	}
	startServer(t, one, 0)
	if p, err := find(t.Context(), []string{none, one}); p != one || err != nil {
		t.Errorf("one bridge: %s, %v", p, err)
	}
	startServer(t, two, 0)
	if _, err := find(t.Context(), []string{none, one, two}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s (process %d), %s", one, os.Getpid(), two)) {
		t.Errorf("two bridges: %v", err)
	}
}

func TestDefaultPath(t *testing.T) {
	t.Setenv("RUNTIME_DIRECTORY", "/run/a:/run/b")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	if got := DefaultPath(); got != "/run/a/control.sock" {
		t.Errorf("under systemd: %s", got)
	}
	t.Setenv("RUNTIME_DIRECTORY", "")
	want := "/run/user/7/rdmabridge/control.sock"
	if os.Geteuid() == 0 {
		want = "/run/rdmabridge/control.sock"
	}
	if got := DefaultPath(); got != want {
		t.Errorf("elsewhere: %s, want %s", got, want)
	}
}

// TestBound: connections beyond the bound are told so, and their end makes room.
func TestBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	startServer(t, path, 0)
	var all []net.Conn
	for range MaxConnections {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /who HTTP/1.1\r\n")
		all = append(all, c)
	}
	client := NewClient(path)
	defer client.Close()
	var p unixsocket.Peer
	testkit.Eventually(t, "a connection too many is refused", func() bool {
		err := client.Get(t.Context(), "/who", &p)
		client.Close()
		return err != nil && strings.Contains(err.Error(), "32 connections")
	})
	all[3].Close()
	testkit.Eventually(t, "there is room again", func() bool { return client.Get(t.Context(), "/who", &p) == nil })
}

// TestOtherUser: another user is refused whatever the mode of the socket is.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which can be another user")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "control.sock")
	_, log := startServer(t, path, 0)
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := askAs(65534, path); err == nil || out != "" {
		t.Errorf("mode 0600: %q, %v, want permission denied", out, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := askAs(65534, path)
	if err != nil || !strings.Contains(out, "403 Forbidden") || !strings.Contains(out, "user 65534 may not control this bridge: only user 0") {
		t.Errorf("mode 0666: %q, %v", out, err)
	}
	if !strings.Contains(log.String(), `"event":"control_refused","uid":65534`) {
		t.Errorf("log: %s", log)
	}
}

// askAs sends a request as the user uid. The thread that becomes that user ends afterwards.
func askAs(uid int, path string) (out string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and it is never unlocked
		if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			err = e
			return
		}
		fd, e := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			err = e
			return
		}
		defer unix.Close(fd)
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
		if _, err = unix.Write(fd, []byte("GET /who HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			return
		}
		b := make([]byte, 4096)
		n := 0
		for {
			m, e := unix.Read(fd, b[n:])
			if e != nil || m == 0 {
				break
			}
			n += m
		}
		out = string(b[:n])
	}()
	<-done
	return out, err
}

// TestDeadProcess: a bridge that was killed leaves a socket that the next one replaces.
func TestDeadProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	cmd := exec.Command(os.Args[0], "-test.run", "^TestDeadProcessHelper$")
	cmd.Env = append(os.Environ(), "CONTROL_TEST_PATH="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the other process listens", func() bool { _, err := find(t.Context(), []string{path}); return err == nil })
	var inUse *InUseError
	if err := NewServer(path, zerolog.Nop()).Start(0); !errors.As(err, &inUse) || inUse.PID != cmd.Process.Pid {
		t.Errorf("while it lives: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	startServer(t, path, 0)
}

func TestDeadProcessHelper(t *testing.T) {
	path := os.Getenv("CONTROL_TEST_PATH")
	if path == "" {
		t.Skip("it is the other process of TestDeadProcess")
	}
	startServer(t, path, 0)
	<-make(chan struct{}) // until it is killed
}
