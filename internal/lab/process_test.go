//go:build lab

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A process is a child process. It ends with its test at the latest.
type process struct {
	cmd   *exec.Cmd
	out   *os.File // standard output and error
	ended chan struct{}
	err   error // set before ended is closed
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(name)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(name, args...), out: out, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// The child dies with this process even if no cleanup runs, as after a timeout.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = out.Close()
	})
	return p
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) output() []byte {
	b, _ := os.ReadFile(p.out.Name())
	return b
}

// end sends a signal and waits for at most 40 s.
func (p *process) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	select {
	case <-p.ended:
	case <-time.After(40 * time.Second):
		t.Fatalf("%s does not end on %v", p.cmd.Path, s)
	}
}

// command runs a command, which has to succeed, and returns its standard output.
func command(t *testing.T, timeout time.Duration, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, tail(stderr.Bytes(), 20))
	}
	return out.Bytes()
}

func waitFor(t *testing.T, timeout time.Duration, what string, ready func() bool) {
	t.Helper()
	if !testkit.Settles(timeout, ready) {
		t.Fatalf("%s is not there after %v", what, timeout)
	}
}

// lastPort is the next port that freePorts tries. It is below the ports that the kernel
// chooses for connections.
var lastPort = 20000

// freePorts returns n TCP ports of the lab's network that were not in use before.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, 0, n)
	for ; len(ports) < n; lastPort++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lastPort))
		if err != nil {
			if lastPort > 30000 {
				t.Fatal(err)
			}
			continue
		}
		l.Close()
		ports = append(ports, lastPort)
	}
	return ports
}

// makeTap makes the tap device name in the lab's network, with an address like 10.9.0.1/24, which makeTap returns without
// its length. A guest that boots with --tap has the other end.
func makeTap(t *testing.T, name, address string) (host string) {
	t.Helper()
	for _, args := range [][]string{
		{"tuntap", "add", "dev", name, "mode", "tap"},
		{"addr", "add", address, "dev", name},
		{"link", "set", name, "up"},
	} {
		command(t, 10*time.Second, "ip", args...)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "link", "delete", name).CombinedOutput(); err != nil {
			t.Errorf("ip link delete %s: %v\n%s", name, err, out)
		}
	})
	host, _, _ = strings.Cut(address, "/")
	return host
}

// cutPorts drops every packet from and to these TCP ports of the lab's network at its receiver, so that
// its sender gets no error, until heal is called.
func cutPorts(t *testing.T, ports ...int) (heal func()) {
	t.Helper()
	// Otherwise policies that drop received packets do not apply to loopback.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/lo/disable_policy", []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	policies := func(act string, words ...string) {
		for _, port := range ports {
			for _, side := range []string{"sport", "dport"} {
				command(t, 10*time.Second, "ip", append([]string{
					"xfrm", "policy", act, "dir", "in",
					"src", "127.0.0.1/32", "dst", "127.0.0.1/32", "proto", "tcp", side, strconv.Itoa(port),
				}, words...)...)
			}
		}
	}
	policies("add", "action", "block")
	return func() { policies("delete") }
}

// notRead returns how many octets the process that listens on a TCP port of the lab's
// network has not read from its connections.
func notRead(t *testing.T, port int) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	six, err6 := os.ReadFile("/proc/net/tcp6") // includes IPv4 if one socket serves both
	if err := errors.Join(err, err6); err != nil {
		t.Fatal(err)
	}
	for _, f := range established(append(text, six...), port) {
		_, queued, _ := strings.Cut(f[4], ":")
		octets, err := strconv.ParseInt(queued, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", f, err)
		}
		n += octets
	}
	return n
}

// established returns the fields of those lines of /proc/net/tcp that are established connections to a
// local port: slot, local address, remote address, state, the queues, out and in, and so on.
func established(text []byte, port int) (lines [][]string) {
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 4 && f[3] == "01" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			lines = append(lines, f)
		}
	}
	return lines
}

func head(b []byte, lines int) []byte {
	all := bytes.SplitAfter(b, []byte("\n"))
	return bytes.Join(all[:min(lines, len(all))], nil)
}

// failures is the tail of b, with the lines before it that say which tests of a test program in the
// guest failed, and the line before each.
func failures(b []byte, lines int) []byte {
	all := bytes.SplitAfter(b, []byte("\n"))
	end := tail(b, lines)
	var out []byte
	for i, line := range all[:max(0, len(all)-lines-1)] {
		if bytes.Contains(line, []byte("--- FAIL")) || bytes.HasPrefix(line, []byte("panic:")) {
			out = append(append(out, all[max(0, i-1)]...), line...)
		}
	}
	return append(out, end...)
}

func tail(b []byte, lines int) []byte {
	all := bytes.SplitAfter(b, []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines-1):], nil)
}
