package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/cmd/rdmabridge/internal/translate"
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/demo"
	"github.com/rdmabridge/rdmabridge/internal/logsink"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestRPCBindServe: rpcbind is off by default, stops with the drain, and fails the start if
// its port is taken.
func TestRPCBindServe(t *testing.T) {
	b, signals, wait := startServe(t, minimalConfig)
	if b.rpcbind != nil {
		t.Error("rpcbind is running although the configuration does not enable it")
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	b, signals, wait = startServe(t, minimalConfig+"rpcbind: {address: '127.0.0.1:0'}\n")
	at := b.rpcbind.Addr().String()
	for _, network := range []string{"tcp", "udp"} {
		c, err := net.Dial(network, at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(testkit.Patience))
		call := nullCall(7, 100000, 2)
		if network == "tcp" {
			call = testkit.Record(call)
		}
		if _, err := c.Write(call); err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, 64)
		n, err := c.Read(reply)
		if want := []byte{0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; err != nil || !bytes.HasSuffix(reply[:n], want) {
			t.Errorf("%s NULL: %x, %v", network, reply[:n], err)
		}
	}
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	if c, err := net.Dial("tcp", at); err == nil {
		c.Close()
		t.Error("rpcbind listens after the end")
	}
	// A port that is taken makes the start fail without a leak.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := configs.Load(fmt.Appendf(nil, "%srpcbind: {address: %q}\n", minimalConfig, l.Addr()), known)
	if err != nil {
		t.Fatal(err)
	}
	if err := serve(c, logsink.New(new(testkit.Log), translate.Log(c.Log)).Logger(), nil, nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("serve on a port that is taken: %v", err)
	}
}

// TestRPCBindClients: real clients find every service without port options. rpcinfo,
// showmount, mount.nfs and libnfs ask port 111, which the bridge has in a network
// namespace that this test creates.
func TestRPCBindClients(t *testing.T) {
	inNetwork(t, testRPCBindClients, "iproute2 rpcbind nfs-common libnfs-utils", "ip", "rpcinfo", "showmount", "mount.nfs", "nfs-ls", "nfs-cp", "nfs-cat")
}

// inNamespace is set in the environment of the process with its own network namespace.
const inNamespace = "RDMABRIDGE_TEST_NAMESPACE"

// inNetwork runs test, which is all of t, in a process that has a network namespace of its own. It skips t without root or
// the tools, which packages have.
func inNetwork(t *testing.T, test func(*testing.T), packages string, tools ...string) {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		test(t)
		return
	}
	missing := func(why string) {
		t.Helper()
		if os.Getenv("RDMABRIDGE_LAB") == "1" {
			t.Fatalf("%s, and RDMABRIDGE_LAB=1 says it is there", why)
		}
		t.Skip(why)
	}
	if os.Getuid() != 0 {
		missing("needs root, for a network namespace")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing(err.Error() + ": install " + packages)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	// Unsharing, unlike cloning, also keeps what test mounts from this namespace.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) { // EINVAL in a chroot whose root is no mount point
		missing("no namespaces here: " + err.Error())
	}
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Error(err)
	}
}

// rpcinfoCases are commands of clients that ask rpcbind.
var rpcinfoCases = []struct {
	command string
	fails   bool
	want    []string // lines, in fields; each must be there
}{
	{"rpcinfo -p 127.0.0.1", false, []string{
		"100000 4 tcp 111 portmapper", "100000 3 udp 111 portmapper", "100000 2 udp 111 portmapper",
		"100003 3 tcp 2049 nfs", "100005 3 tcp 2049 mountd",
	}},
	{"rpcinfo 127.0.0.1", false, []string{
		"100003 3 tcp 0.0.0.0.8.1 nfs rdmabridge", "100003 3 rdma 127.0.0.1.78.81 nfs rdmabridge",
		"100005 1 tcp 0.0.0.0.8.1 mountd rdmabridge",
	}},
	{"rpcinfo -s 127.0.0.1", false, []string{"100005 3,2,1 tcp6,tcp mountd rdmabridge"}},
	{"rpcinfo -l 127.0.0.1 100003 3", false, []string{
		"100003 3 inet/tcp/cots_ord 127.0.0.1.8.1 nfs", "100003 3 inet/rdma/cots 127.0.0.1.78.81 nfs",
	}},
	{"rpcinfo -m 127.0.0.1", false, []string{"RPCBIND (version 4) statistics", "VERADDR INDRECT GETLIST GETSTAT", "0 0 1 1"}},
	{"rpcinfo -T tcp 127.0.0.1 100003 3", false, []string{"program 100003 version 3 ready and waiting"}},
	{"rpcinfo -t 127.0.0.1 100003", false, []string{"program 100003 version 3 ready and waiting"}}, // which versions are there?
	{"rpcinfo -T tcp6 ::1 100003 3", false, []string{"program 100003 version 3 ready and waiting"}},
	{"rpcinfo -T udp6 ::1 100000 4", false, []string{"program 100000 version 4 ready and waiting"}},
	{"rpcinfo -u 127.0.0.1 100000", false, []string{"program 100000 version 2 ready and waiting", "program 100000 version 4 ready and waiting"}},
	{"rpcinfo -T udp 127.0.0.1 100003 3", true, []string{"rpcinfo: RPC: Program not registered"}},
	{"rpcinfo -u 127.0.0.1 100005 3", true, nil},
	{"rpcinfo -t 127.0.0.1 100021 4", true, nil},
	{"showmount -e 127.0.0.1", false, []string{"/ (everyone)"}},
}

// testRPCBindClients runs in a network namespace of its own.
func testRPCBindClients(t *testing.T) {
	mustRunCommand(t, "ip", "link", "set", "lo", "up")
	_, signals, wait := startServe(t, fmt.Sprintf(`
listeners:
  - name: nfs
    address: "[::]:2049"
    routes:
      - {program: nfs, versions: [3], upstream: server}
      - {program: mount, upstream: server}
  - {name: rdma, address: "127.0.0.1:20049", transport: rdma, upstream: server}
upstreams: [{name: server, transport: tcp, endpoints: [%q]}]
rpcbind: {address: "[::]:111"}
memory: {budget: 256MiB}
admin: {address: none}
drain: {timeout: 1m}
`, startDemoNFS(t, demo.Options{})))
	conn, err := net.Dial("udp", "[::1]:111")
	if err == nil {
		conn.Close()
	}
	checkRPCInfo(t, err == nil)
	local := filepath.Join(t.TempDir(), "file")
	data := strings.Repeat("no port options\n", 10000)
	if err := os.WriteFile(local, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := runCommand(t, "nfs-cp", local, "nfs://127.0.0.1//file"); err != nil {
		t.Errorf("nfs-cp: %v\n%s", err, out)
	}
	if out, err := runCommand(t, "nfs-cat", "nfs://127.0.0.1//file"); err != nil || out != data {
		t.Errorf("nfs-cat: %v, %d octets, want %d", err, len(out), len(data))
	}
	checkMount(t, data)
	signals <- syscall.SIGTERM
	if err := wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
}

// runCommand runs a command for at most testkit.Patience and returns its output.
func runCommand(t *testing.T, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

func mustRunCommand(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := runCommand(t, name, args...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// checkRPCInfo runs rpcinfoCases. six says that there is IPv6.
func checkRPCInfo(t *testing.T, six bool) {
	for _, tt := range rpcinfoCases {
		args := strings.Fields(tt.command)
		if !six && slices.Contains(args, "::1") {
			continue
		}
		out, err := runCommand(t, args[0], args[1:]...)
		t.Logf("%s: %v\n%s", tt.command, err, out)
		if (err != nil) != tt.fails {
			t.Errorf("%s: %v\n%s", tt.command, err, out)
			continue
		}
		var lines []string
		for line := range strings.Lines(out) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		for _, want := range tt.want {
			if !six {
				want = strings.ReplaceAll(want, "tcp6,", "")
			}
			if !slices.Contains(lines, want) {
				t.Errorf("%s lacks %q:\n%s", tt.command, want, out)
			}
		}
	}
}

// checkMount checks that mount.nfs finds both programs. Then mount.nfs asks the kernel,
// which may lack NFS; if the kernel has it, the mounted file contains data.
func checkMount(t *testing.T, data string) {
	dir := t.TempDir()
	out, err := runCommand(t, "mount.nfs", "127.0.0.1:/", dir, "-v", "-o", "vers=3,nolock,retry=0")
	for _, want := range []string{
		"mount.nfs: trying 127.0.0.1 prog 100003 vers 3 prot TCP port 2049\n",
		"mount.nfs: trying 127.0.0.1 prog 100005 vers 3 prot TCP port 2049\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("mount.nfs: %v\n%s", err, out)
		}
	}
	if err != nil {
		return
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != data {
		t.Errorf("mounted: %v, %d octets, want %d", err, len(got), len(data))
	}
	if out, err := runCommand(t, "umount", dir); err != nil {
		t.Errorf("umount: %v\n%s", err, out)
	}
}
