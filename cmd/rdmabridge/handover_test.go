package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// The test binary is also the bridge, for tests that start processes.
func init() {
	if os.Getenv("RDMABRIDGE_TEST_MAIN") != "" {
		ownsProcess = true
		os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
	}
}

// TestMain gives the bridges of tests whose configuration does not say where the control socket is a directory of this
// process's: they keep away from the bridges of this host, and from those of the same tests in other processes.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rdmabridge-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("RUNTIME_DIRECTORY", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// testNotify is the environment variable whose value becomes NOTIFY_SOCKET of the
// processes that a test starts.
const testNotify = "RDMABRIDGE_TEST_NOTIFY"

// A bridgeCommand is a bridge in another process.
type bridgeCommand struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *logFile
	done chan error
}

// A logFile receives the log of processes. It is not a pipe: Cmd.Wait would wait until the
// successor of a process closes the pipe, too.
type logFile struct{ f *os.File }

func newLogFile(t *testing.T) *logFile {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &logFile{f}
}

func (l *logFile) String() string {
	b, err := os.ReadFile(l.f.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func startProcess(t *testing.T, log *logFile, args ...string) *bridgeCommand {
	t.Helper()
	x := &bridgeCommand{t: t, log: log, done: make(chan error, 1)}
	x.cmd = exec.Command(os.Args[0], args...)
	x.cmd.Env = append(os.Environ(), "RDMABRIDGE_TEST_MAIN=1", "NOTIFY_SOCKET="+os.Getenv(testNotify))
	x.cmd.Stderr = log.f
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { x.done <- x.cmd.Wait() }()
	t.Cleanup(func() {
		x.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("log of %d:\n%s", x.cmd.Process.Pid, log)
		}
	})
	return x
}

// exit waits until the process exits.
func (x *bridgeCommand) exit() error {
	x.t.Helper()
	select {
	case err := <-x.done:
		x.done <- err
		return err
	case <-time.After(testkit.Patience):
		x.t.Fatal("the process does not end")
		return nil
	}
}

// says waits until the log contains what.
func (x *bridgeCommand) says(what string) {
	x.t.Helper()
	testkit.Eventually(x.t, "the log says "+what, func() bool { return strings.Contains(x.log.String(), what) })
}

// dialAll connects to addrs again and again. It returns an error if a connection fails.
func dialAll(addrs []string, stop <-chan struct{}) error {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		addr := addrs[n%len(addrs)]
		c, err := net.DialTimeout("tcp", addr, testkit.Patience)
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		c.Close()
		time.Sleep(2 * time.Millisecond)
	}
}

// handoverConfig is the configuration of TestHandover. Calls to listener loop go through
// RDMA to whichever process accepts the connection.
const handoverConfig = `
listeners:
  - {name: nfs, address: %q, upstream: one}
  - {name: rdma, address: %q, transport: rdma, upstream: one}
  - {name: loop, address: %q, upstream: self}
upstreams:
  - {name: one, transport: tcp, endpoints: [%q], timeouts: {probe: none}}
  - {name: self, transport: rdma, endpoints: [%q], pool: {connections: 1}, timeouts: {probe: none}}
admin: {address: %q}
rpcbind: {address: %q}
nlm: {address: %q, server: 127.0.0.1, state: %s/locks}
memory: {budget: 256MiB}
loops: 2
handover: {path: %s/h.sock}
`

// TestHandover: one process after the other takes over while clients call and connect. No
// Call is lost, none is executed twice, and no client is refused.
func TestHandover(t *testing.T) {
	s := startEchoServer(t, "one!")
	dir := t.TempDir()
	file := filepath.Join(dir, "rdmabridge.yaml")
	nfs, rdma, loop, admin, rpcb, locks := testkit.FreeAddr(t), testkit.FreeAddr(t), testkit.FreeAddr(t), testkit.FreeAddr(t), testkit.FreeAddr(t), testkit.FreeAddr(t)
	write(t, file, fmt.Sprintf(handoverConfig, nfs, rdma, loop, s.addr, rdma, admin, rpcb, locks, dir, dir))
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file, "--takeover")
	p.says(`"message":"no process to take over from; starting as usual"`)
	testkit.Eventually(t, "the bridge is ready", func() bool { return ready(admin) })
	testkit.Eventually(t, "the socket has mode 0600", func() bool {
		info, err := os.Stat(filepath.Join(dir, "h.sock"))
		return err == nil && info.Mode().Perm() == 0o600
	})

	var callers []*caller
	for range 4 {
		callers = append(callers, startCaller(t, nfs, 100003))
	}
	callers = append(callers, startCaller(t, loop, 100003))
	stop, dials := make(chan struct{}), make(chan error, 1)
	go func() { dials <- dialAll([]string{nfs, rdma, loop, admin, rpcb, locks}, stop) }()
	for n := range 3 {
		progress(t, callers...)
		next := startProcess(t, log, "serve", "-c", file, "--takeover")
		if err := p.exit(); err != nil {
			t.Errorf("the old process: %v", err)
		}
		p = next
		testkit.Eventually(t, "the next one may take over", func() bool { return strings.Count(log.String(), `"message":"take-over complete"`) == n+1 })
	}
	progress(t, callers...)
	close(stop)
	if err := <-dials; err != nil {
		t.Errorf("connecting: %v", err)
	}
	calls := int64(0)
	for _, c := range callers {
		c.end(t)
		calls += c.calls.Load()
		if n := c.reconnect.Load(); n < 3 {
			t.Errorf("a client has connected again %d times, want 3", n)
		}
	}
	if n := s.Calls.Load() - s.primes.Load(); n != calls {
		t.Errorf("the server has executed %d Calls, and %d were answered", n, calls)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.exit(); err != nil {
		t.Errorf("the last process: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "h.sock")); err == nil {
		t.Error("the socket is left at the end")
	}
}

// ready reports whether /readyz answers with 200.
func ready(admin string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+admin+"/readyz", nil)
	if err != nil {
		return false
	}
	r.Close = true
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	a.Body.Close()
	return a.StatusCode == http.StatusOK
}

// untilThere waits for the hand-over socket at path.
func untilThere(t *testing.T, path string) {
	t.Helper()
	testkit.Eventually(t, "there is "+path, func() bool { _, err := os.Stat(path); return err == nil })
}

// TestHandoverSlowCall: the old process answers the Calls that it has read, and then closes
// their clients. The new process serves other clients meanwhile.
func TestHandoverSlowCall(t *testing.T) {
	s := startSlowServer(t)
	dir := t.TempDir()
	file, nfs := filepath.Join(dir, "rdmabridge.yaml"), testkit.FreeAddr(t)
	text := strings.Replace(slowConfig(s, "1m"), "127.0.0.1:0", nfs, 1) + "handover: {path: " + dir + "/h.sock}\nmemory: {budget: 256MiB}\n"
	write(t, file, text)
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	p.says(`"message":"connected to upstream"`)
	untilThere(t, dir+"/h.sock")
	c := callSlow(t, nfs, s)
	mounts, err := net.Dial("tcp", nfs)
	must(t, err)
	defer mounts.Close()
	mounts.SetReadDeadline(time.Now().Add(testkit.Patience))
	next := startProcess(t, log, "serve", "-c", file, "--takeover")
	_, err = mounts.Read(make([]byte, 1))
	if served := time.Since(timeOf(t, log.String(), "handover_done")); err != io.EOF || served < 900*time.Millisecond {
		t.Errorf("a client that has just connected, and may be mounting, reads %v after %v", err, served)
	}
	p.says(`"message":"handed over; draining"`)
	d := callSlow(t, nfs, s)
	s.answer <- struct{}{}
	s.answer <- struct{}{}
	for _, c := range []net.Conn{c, d} {
		if m, err := testkit.ReadRecord(c); err != nil || binary.BigEndian.Uint32(m) != 7 {
			t.Errorf("Reply: %x, %v", m, err)
		}
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client of the old process: %v, want EOF after its Reply", err)
	}
	c.Close()
	if err := p.exit(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	d.Close()
	next.cmd.Process.Signal(syscall.SIGTERM)
	if err := next.exit(); err != nil {
		t.Errorf("the new process: %v", err)
	}
	saysWho(t, log.String(), p.cmd.Process.Pid, next.cmd.Process.Pid)
}

// timeOf returns when the line of an event was logged.
func timeOf(t *testing.T, log, event string) (at time.Time) {
	t.Helper()
	for text := range strings.Lines(log) {
		var line struct {
			Event string
			Time  time.Time
		}
		if json.Unmarshal([]byte(text), &line) == nil && line.Event == event {
			at = line.Time
		}
	}
	if at.IsZero() {
		t.Fatalf("the log has no %s", event)
	}
	return at
}

// saysWho checks that each line of a log that two processes share says which of them wrote it, and during
// the hand-over in which role.
func saysWho(t *testing.T, log string, was, is int) {
	t.Helper()
	roles := map[string]string{
		"hand-over: sockets sent": fmt.Sprint(was, " old"), "handed over; draining": fmt.Sprint(was, " old"),
		"taking over": fmt.Sprint(is, " new"), "take-over complete": fmt.Sprint(is, " "),
	}
	for text := range strings.Lines(log) {
		var line struct {
			PID           int
			Role, Message string
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil || line.PID != was && line.PID != is {
			t.Errorf("the line does not say who wrote it: %s", text)
		}
		if want, ok := roles[line.Message]; ok {
			if got := fmt.Sprint(line.PID, " ", line.Role); got != want {
				t.Errorf("%q is of %q, want %q", line.Message, got, want)
			}
			delete(roles, line.Message)
		}
	}
	if len(roles) > 0 {
		t.Errorf("lines that are not there: %v", roles)
	}
}

// TestHandoverFails: a new process that cannot start or cannot serve changes nothing.
func TestHandoverFails(t *testing.T) {
	s, taken := startEchoServer(t, "one!"), startEchoServer(t, "two!")
	dir := t.TempDir()
	nfs := testkit.FreeAddr(t)
	text := fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: one}]
upstreams: [{name: one, transport: tcp, endpoints: [%q]}]
admin: {address: none}
memory: {budget: 256MiB}
handover: {path: %s/h.sock}
`, nfs, s.addr, dir)
	file := filepath.Join(dir, "good.yaml")
	write(t, file, text)
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	p.says(`"message":"connected to upstream"`)
	untilThere(t, dir+"/h.sock")
	c := startCaller(t, nfs, 100003)
	n := 0
	for what, text := range map[string]string{
		"an address that is taken": strings.Replace(text, "upstream: one}]", fmt.Sprintf("upstream: one}, {name: other, address: %q, upstream: one}]", taken.addr), 1),
		"an upstream that is down": strings.Replace(text, s.addr, testkit.DeadAddr(t), 1),
	} {
		n++
		bad := filepath.Join(dir, "bad.yaml")
		write(t, bad, text)
		q := startProcess(t, newLogFile(t), "serve", "-c", bad, "--takeover")
		if what == "an upstream that is down" {
			q.says(`"message":"listening"`)
			q.cmd.Process.Signal(syscall.SIGTERM) // it would give up after half a minute
		}
		if err := q.exit(); err == nil {
			t.Errorf("%s: the new process exited without an error", what)
		}
		testkit.Eventually(t, what, func() bool {
			return strings.Count(log.String(), `"message":"hand-over failed; this process continues"`) == n
		})
		before := c.calls.Load()
		testkit.Eventually(t, "more Calls are answered after "+what, func() bool { return c.calls.Load() > before+20 })
	}
	sendNonsense(t, dir+"/h.sock")
	d := startCaller(t, nfs, 100003)
	testkit.Eventually(t, "another client has Calls answered", func() bool { return d.calls.Load() > 20 })
	c.end(t)
	d.end(t)
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.exit(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// sendNonsense connects to a hand-over socket and breaks the protocol, or disconnects.
func sendNonsense(t *testing.T, path string) {
	t.Helper()
	for _, line := range []string{"", "GET / HTTP/1.1\r\n\r\n", `{"version":99}` + "\n", `{"version":1}` + "\nready?\n"} {
		u, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(u, line)
		if line != "" {
			u.SetReadDeadline(time.Now().Add(testkit.Patience))
			io.Copy(io.Discard, u)
		}
		u.Close()
	}
}

// TestSuccessor: on SIGUSR2 a process starts its own successor, a child of the service manager, which is this process. A
// successor that exits does not prevent the next.
func TestSuccessor(t *testing.T) {
	s := startEchoServer(t, "one!")
	dir := t.TempDir()
	nfs := testkit.FreeAddr(t)
	file := filepath.Join(dir, "rdmabridge.yaml")
	write(t, file, fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: one}]
upstreams: [{name: one, transport: tcp, endpoints: [%q]}]
admin: {address: none}
memory: {budget: 256MiB}
handover: {path: %s/h.sock}
`, nfs, s.addr, dir))
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	t.Setenv(testNotify, dir+"/notify")
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	p.says(`"message":"connected to upstream"`)
	c := startCaller(t, nfs, 100003)
	testkit.Eventually(t, "a Call is answered", func() bool { return c.calls.Load() > 20 })
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(`"message":"configuration reloaded: no setting to change"`)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, "listeners: []")
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"successor exited; this process continues"`)
	write(t, file, string(good))
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"take-over complete"`)
	if err := p.exit(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", successorPID(t, log)))
	if parent := fmt.Sprintf("\nPPid:\t%d\n", os.Getpid()); err != nil || !strings.Contains(string(status), parent) {
		t.Errorf("the successor has another parent, %v:\n%s", err, status)
	}
	n := c.calls.Load()
	testkit.Eventually(t, "more Calls are answered", func() bool { return c.calls.Load() > n+20 })
	c.end(t)
	pid := successorPID(t, log)
	syscall.Kill(pid, syscall.SIGTERM)
	checkNotifications(t, notify, pid)
	testkit.Eventually(t, "the successor is gone", func() bool { _, err := os.Stat(dir + "/h.sock"); return err != nil })
}

// successorPID returns the process id of the last successor in the log.
func successorPID(t *testing.T, log *logFile) int {
	t.Helper()
	var pid int
	for line := range strings.SplitSeq(log.String(), "\n") {
		if strings.Contains(line, `"successor started"`) {
			_, after, _ := strings.Cut(line, `"other_pid":`)
			fmt.Sscanf(after, "%d", &pid)
		}
	}
	if pid == 0 {
		t.Fatal("the log names no successor")
	}
	return pid
}

// checkNotifications reads what the processes tell systemd until the successor pid
// stops. systemd trusts the old process, which has to name the successor.
func checkNotifications(t *testing.T, notify *net.UnixConn, pid int) {
	t.Helper()
	var heard []string
	for len(heard) == 0 || heard[len(heard)-1] != "STOPPING=1" {
		b := make([]byte, 256)
		notify.SetReadDeadline(time.Now().Add(testkit.Patience))
		n, err := notify.Read(b)
		if err != nil {
			t.Fatalf("systemd hears %q, then %v", heard, err)
		}
		heard = append(heard, string(b[:n]))
	}
	for i, want := range []string{"READY=1", "RELOADING=1\nMONOTONIC_USEC=", "READY=1"} {
		if i >= len(heard) || !strings.HasPrefix(heard[i], want) {
			t.Errorf("systemd hears %q, want %q as number %d", heard, want, i)
		}
	}
	if want := fmt.Sprintf("MAINPID=%d\nREADY=1", pid); !slices.Contains(heard, want) {
		t.Errorf("systemd hears %q, want %q", heard, want)
	}
}
