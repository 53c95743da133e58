package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// TestHardening: a bridge gives up what it does not need, and does everything that it did: it reloads its file and
// opens its access log again, whatever replaces them, answers commands, and hands over to a successor. What
// its restrictions do not permit, it refuses with a reason.
func TestHardening(t *testing.T) {
	s := startEchoServer(t, "one!")
	dir := t.TempDir()
	for _, name := range []string{"etc", "log", "run", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	nfs := testkit.FreeAddr(t)
	file := filepath.Join(dir, "etc", "bridge.yaml")
	install := func(accessLog, more string) {
		t.Helper()
		write(t, file+".new", fmt.Sprintf(`
listeners: [{name: nfs, address: %q, upstream: one}]
upstreams: [{name: one, transport: tcp, endpoints: [%q]}]
admin: {address: none}
memory: {budget: 256MiB}
control: {path: %[3]s/run/c.sock}
handover: {path: %[3]s/run/h.sock}
log: {access: {mode: all, path: %[4]q}}
reload: {watch: none}
%[5]s
`, nfs, s.addr, dir, accessLog, more))
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	calls := filepath.Join(dir, "log", "calls")
	install(calls, "")
	p, log := startHardened(t, file)
	untilThere(t, dir+"/run/h.sock")
	checkRestricted(t, p.cmd.Process.Pid, true)
	c := startCaller(t, nfs, 100003)
	grows(t, calls)

	// logrotate.
	if err := os.Rename(calls, calls+".1"); err != nil {
		t.Fatal(err)
	}
	p.cmd.Process.Signal(syscall.SIGHUP)
	grows(t, calls)

	install(filepath.Join(dir, "log", "others"), "drain: {timeout: 20s}")
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(`"setting":"drain.timeout"`)
	grows(t, filepath.Join(dir, "log", "others"))

	// A directory that the file did not have.
	install(filepath.Join(dir, "elsewhere", "calls"), "drain: {timeout: 10s}")
	p.cmd.Process.Signal(syscall.SIGHUP)
	p.says(`"event":"reload_refused"`)
	p.says(dir + `/elsewhere is outside of the directories that this process has been restricted to`)
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"successor not started; this process continues"`)

	stats := newLogFile(t)
	q := startProcess(t, stats, "stats", "--socket", dir+"/run/c.sock")
	if err := q.exit(); err != nil {
		t.Errorf("stats: %v", err)
	}

	install(calls, "")
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"take-over complete"`)
	if err := p.exit(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	pid := successorPID(t, log)
	checkRestricted(t, pid, true)
	n := c.calls.Load()
	testkit.Eventually(t, "more Calls are answered", func() bool { return c.calls.Load() > n+20 })
	c.end(t)
	syscall.Kill(pid, syscall.SIGTERM)
	testkit.Eventually(t, "the successor is gone", func() bool { _, err := os.Stat(dir + "/run/h.sock"); return err != nil })

	install(filepath.Join(dir, "elsewhere", "calls"), "hardening: off")
	log = newLogFile(t)
	p = startProcess(t, log, "serve", "-c", file)
	p.says(`"missing":["everything: the configuration has hardening: off"]`)
	p.says(`"message":"connected to upstream"`)
	checkRestricted(t, p.cmd.Process.Pid, false)
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.exit(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestHardeningTLS: a restricted bridge reads new certificates however they come: renamed into their place, behind
// the symbolic link ..data, which Kubernetes swaps, and in a directory that a symbolic link leads to, which is swapped.
// It also streams a capture. Its successor does the same.
func TestHardeningTLS(t *testing.T) {
	s := startEchoServer(t, "one!")
	dir, ca := t.TempDir(), tlstest.NewCA(t, "servers")
	in := func(name string) string { return filepath.Join(dir, name) }
	issue := func(at, name string) {
		t.Helper()
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		p := ca.Issue(t, tlstest.Subject{Name: name, Names: []string{"localhost"}})
		tlstest.Write(t, at, "server.pem", p.Cert, p.Key)
	}
	link := func(target, at string) {
		t.Helper()
		if err := os.Symlink(target, at+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".new", at); err != nil {
			t.Fatal(err)
		}
	}
	issue(in("plain"), "renamed1")
	issue(in("secret/..1"), "secret1")
	link("..1", in("secret/..data"))
	link("..data/server.pem", in("secret/server.pem"))
	issue(in("releases/1"), "current1")
	link("releases/1", in("current"))
	places := map[string]string{"renamed": in("plain/server.pem"), "secret": in("secret/server.pem"), "current": in("current/server.pem")}
	addrs, listeners := make(map[string]string), ""
	for name, path := range places {
		addrs[name] = testkit.FreeAddr(t)
		listeners += fmt.Sprintf("  - {name: %s, address: %q, upstream: one, tls: {mode: optional, certificate: %s}}\n", name, addrs[name], path)
	}
	for _, sub := range []string{"run", "etc"} {
		if err := os.Mkdir(in(sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := in("etc/bridge.yaml")
	write(t, file, fmt.Sprintf(`
listeners:
%[1]supstreams: [{name: one, transport: tcp, endpoints: [%[2]q]}]
admin: {address: none}
memory: {budget: 256MiB}
control: {path: %[3]s/run/c.sock}
handover: {path: %[3]s/run/h.sock}
reload: {watch: 50ms}
`, listeners, s.addr, dir))
	p, log := startHardened(t, file)
	untilThere(t, in("run/h.sock"))
	shows := func(version string) {
		t.Helper()
		for name, addr := range addrs {
			testkit.Eventually(t, name+version+" is shown", func() bool {
				nc, err := net.Dial("tcp", addr)
				if err != nil {
					return false
				}
				defer nc.Close()
				c, err := proxytest.StartTLS(nc, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", NextProtos: []string{"sunrpc"}})
				return err == nil && c.ConnectionState().PeerCertificates[0].Subject.CommonName == name+version
			})
		}
	}
	captures := func() {
		t.Helper()
		out := newLogFile(t)
		q := startProcess(t, out, "capture", "--socket", in("run/c.sock"), "-w", in("out.pcapng"))
		grows(t, in("out.pcapng"))
		q.cmd.Process.Signal(syscall.SIGINT)
		if err := q.exit(); err != nil {
			t.Errorf("capture: %v", err)
		}
		if err := os.Remove(in("out.pcapng")); err != nil {
			t.Fatal(err)
		}
	}
	next := func(version string) {
		t.Helper()
		issue(in("plain"), "renamed"+version)
		issue(in("secret/.."+version), "secret"+version)
		link(".."+version, in("secret/..data"))
		issue(in("releases/"+version), "current"+version)
		link("releases/"+version, in("current"))
	}
	c := startCaller(t, addrs["renamed"], 100003)
	shows("1")
	captures()
	next("2")
	shows("2")
	p.cmd.Process.Signal(syscall.SIGUSR2)
	p.says(`"message":"take-over complete"`)
	if err := p.exit(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	pid := successorPID(t, log)
	checkRestricted(t, pid, true)
	shows("2")
	captures()
	next("3")
	shows("3")
	if strings.Contains(log.String(), `"event":"tls_files_refused"`) {
		t.Errorf("files were refused:\n%s", log)
	}
	c.end(t)
	syscall.Kill(pid, syscall.SIGTERM)
	testkit.Eventually(t, "the successor is gone", func() bool { _, err := os.Stat(in("run/h.sock")); return err != nil })
}

// checkRestricted checks what the kernel says of a process.
func checkRestricted(t *testing.T, pid int, want bool) {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		status := read("task/" + task.Name() + "/status")
		for _, line := range []string{"\nSeccomp:\t2\n", "\nNoNewPrivs:\t1\n"} {
			if strings.Contains(status, line) != want {
				t.Errorf("thread %s: %q is there: %t", task.Name(), line, !want)
			}
		}
	}
	for line := range strings.Lines(read("limits")) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max core file size") && want && f[4] != "0" {
			t.Errorf("limits: %s", line)
		}
	}
}

// grows waits until a line is added to a file.
func grows(t *testing.T, file string) {
	t.Helper()
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	testkit.Eventually(t, file+" grows", func() bool { return size() > before })
}

// startHardened starts a bridge with everything that hardening has, and waits until it is connected to its upstream. It
// skips the test where the kernel lacks a part.
func startHardened(t *testing.T, file string) (*bridgeCommand, *logFile) {
	t.Helper()
	log := newLogFile(t)
	p := startProcess(t, log, "serve", "-c", file)
	p.says(`"event":"hardening"`)
	if !strings.Contains(log.String(), `"in_force":["core dumps","files","system calls"],"missing":[]`) {
		t.Skip("this kernel has not everything:", log)
	}
	p.says(`"message":"connected to upstream"`)
	return p, log
}
