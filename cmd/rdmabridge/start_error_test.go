package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/cli"
)

// TestStartErrors: a bridge that cannot start says so in one line of its log, with the way out.
func TestStartErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	dir := t.TempDir()
	for _, tc := range []struct{ name, text, err, advice string }{
		{
			"listener taken", strings.Replace(minimalConfig, "127.0.0.1:0", taken, 1),
			"address already in use", "this process itself listens at port ",
		},
		{
			"admin taken", strings.Replace(minimalConfig, "admin: {address: 127.0.0.1:0}", "admin: {address: "+taken+"}", 1),
			"address already in use", "write another port in admin.address (--admin-address; of demo: --admin)",
		},
		{
			"lock manager taken", minimalConfig + "\nnlm: {address: " + taken + ", server: 127.0.0.2, state: none}\n",
			"address already in use", "write another port in nlm.address",
		},
		{
			"address of another host", strings.Replace(minimalConfig, "127.0.0.1:0", "192.0.2.1:2049", 1),
			"cannot assign requested address", `compare "ip address" with listeners[nfs].address`,
		},
		{
			"access log without a directory", minimalConfig + "\nlog: {access: {mode: all, path: " + dir + "/no/access.log}}\n",
			"no such file or directory", "make the directory " + dir + "/no",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			if code := execute([]string{"serve", "-c", writeFile(t, tc.text)}, &out, &errOut); code != cli.ExitFailed {
				t.Errorf("exit code %d", code)
			}
			lines := strings.Split(strings.TrimSpace(errOut.String()), "\n")
			var line struct{ Level, Event, Error, Advice string }
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &line); err != nil {
				t.Fatalf("%v: %s", err, &errOut)
			}
			if line.Level != "fatal" || line.Event != "start_failed" || !strings.Contains(line.Error, tc.err) || !strings.Contains(line.Advice, tc.advice) {
				t.Errorf("the last line is %+v, want %q and %q", line, tc.err, tc.advice)
			}
		})
	}
}

// TestPortOwner: a restricted process, which cannot look at others any more, names the one that has its port.
func TestPortOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := startProcess(t, newLogFile(t), "serve", "-c", writeFile(t, strings.Replace(minimalConfig, "127.0.0.1:0", l.Addr().String(), 1)))
	if err := p.exit(); err == nil {
		t.Error("the bridge has started")
	}
	p.says(`"event":"hardening","in_force":["`)
	p.says(fmt.Sprintf(`"advice":"process %d (`, os.Getpid()))
}

func TestPrivilegedPortAdvice(t *testing.T) {
	c, err := configs.Load([]byte(strings.Replace(minimalConfig, "127.0.0.1:0", "0.0.0.0:111", 1)), known)
	if err != nil {
		t.Fatal(err)
	}
	denied := &net.OpError{Op: "listen", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4zero, Port: 111}, Err: os.NewSyscallError("bind", syscall.EACCES)}
	got := wayOut(fmt.Errorf("proxy: listener nfs: %w", denied), c, nil)
	for _, want := range []string{"AmbientCapabilities=CAP_NET_BIND_SERVICE", "setcap cap_net_bind_service=+ep /", "listeners[nfs].address"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if got := wayOut(errors.New("something else"), c, nil); got != "" {
		t.Errorf("advice for any error: %q", got)
	}
}

// TestListenerAt reads a /proc of another host.
func TestListenerAt(t *testing.T) {
	proc := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(proc, "self/net"), 0o700))
	must(t, os.MkdirAll(filepath.Join(proc, "812/fd"), 0o700))
	write(t, filepath.Join(proc, "self/net/tcp"), `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:006F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:0801 0100007F:006F 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
`)
	write(t, filepath.Join(proc, "812/comm"), "rpcbind\n")
	must(t, os.Symlink("socket:[4711]", filepath.Join(proc, "812/fd/4")))
	if pid, name := listenerAt(proc, 111); pid != 812 || name != "rpcbind" {
		t.Errorf("process %d (%s), want 812 (rpcbind)", pid, name)
	}
	for _, port := range []uint16{2049, 112} {
		if pid, _ := listenerAt(proc, port); pid != 0 {
			t.Errorf("process %d listens at %d", pid, port)
		}
	}
}
