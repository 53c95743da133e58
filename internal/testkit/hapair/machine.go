// Package hapair makes two machines in network namespaces, of which keepalived gives one the floating addresses of
// deploy/keepalived/keepalived.conf. The caller's network is that of clients and servers.
package hapair

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// The addresses of deploy/keepalived/keepalived.conf, and those of this network and of the machines.
const (
	Floating = "192.0.2.100" // what clients mount
	Source   = "192.0.2.101" // what servers see
	Outside  = "192.0.2.1"   // clients and servers
	within   = "192.0.2."    // the machines: 11 and 12
)

// lan is the name of the switch.
const lan = "lan"

// Missing says what this host lacks for two machines, or "".
func Missing() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, p := range []string{"ip", "keepalived", "curl", "ss"} {
		if _, err := exec.LookPath(p); err != nil {
			return p
		}
	}
	return ""
}

// A Machine is a network namespace with a bridge and a keepalived.
type Machine struct {
	Name              string
	Address           string
	namespace, port   string // the port of the switch
	keepalived, serve *Process
	binary, config    string
}

// New makes two machines. The caller's network namespace is its own: it gets a switch and the address Outside.
// The bridge is the program binary. config is its configuration.
func New(t *testing.T, binary, config string) [2]*Machine {
	t.Helper()
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", lan, "type", "bridge")
	t.Cleanup(func() { ip(t, "link", "del", lan) })
	ip(t, "addr", "add", Outside+"/24", "dev", lan)
	ip(t, "link", "set", lan, "up")
	text, err := os.ReadFile("../../deploy/keepalived/keepalived.conf")
	if err != nil {
		t.Fatal(err)
	}
	var machines [2]*Machine
	for i, priority := range []string{"priority 100", "priority 90"} {
		m := &Machine{
			Name: string(rune('a' + i)), Address: fmt.Sprintf("%s%d", within, 11+i), binary: binary,
			namespace: fmt.Sprintf("rdmabridge-%d-%d", os.Getpid(), i), port: fmt.Sprintf("m%d", i),
			config: filepath.Join(t.TempDir(), "rdmabridge.yaml"),
		}
		machines[i] = m
		m.Configure(t, config)
		ip(t, "netns", "add", m.namespace)
		t.Cleanup(func() { ip(t, "netns", "del", m.namespace) })
		ip(t, "link", "add", m.port, "type", "veth", "peer", "name", "eth0", "netns", m.namespace)
		ip(t, "link", "set", m.port, "master", lan, "up")
		ip(t, "-n", m.namespace, "link", "set", "lo", "up")
		ip(t, "-n", m.namespace, "addr", "add", m.Address+"/24", "dev", "eth0")
		ip(t, "-n", m.namespace, "link", "set", "eth0", "up")

		dir := t.TempDir()
		conf := filepath.Join(dir, "keepalived.conf")
		if err := os.WriteFile(conf, bytes.ReplaceAll(text, []byte("priority 100"), []byte(priority)), 0o600); err != nil {
			t.Fatal(err)
		}
		m.StartBridge(t)
		m.keepalived = m.Start(t, "keepalived", "--dont-fork", "--log-console", "--log-detail", "--vrrp", "--use-file", conf,
			"--pid", filepath.Join(dir, "pid"), "--vrrp_pid", filepath.Join(dir, "vrrp"))
	}
	t.Cleanup(func() {
		for _, m := range machines {
			m.keepalived.End(syscall.SIGTERM)
			m.serve.End(syscall.SIGKILL)
		}
	})
	testkit.Eventually(t, "one of the machines has the addresses", func() bool { return machines[0].Active(t) != machines[1].Active(t) })
	return machines
}

// Configure replaces the configuration of a machine's bridge, for the next start.
func (m *Machine) Configure(t *testing.T, config string) {
	t.Helper()
	if err := os.WriteFile(m.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Standbys counts how often a machine has become a standby: it waits for the other one to fail.
func (m *Machine) Standbys() int {
	return strings.Count(m.keepalived.Log(), "Entering BACKUP STATE")
}

// StartBridge starts the bridge of a machine.
func (m *Machine) StartBridge(t *testing.T) { m.serve = m.Start(t, m.binary, "serve", "-c", m.config) }

// KillBridge kills the bridge of a machine.
func (m *Machine) KillBridge() { m.serve.End(syscall.SIGKILL) }

// Bridge is the bridge of a machine.
func (m *Machine) Bridge() *Process { return m.serve }

// Unplug takes the cable out of a machine, which notices that.
func (m *Machine) Unplug(t *testing.T) { ip(t, "link", "set", m.port, "down") }

// Plug puts the cable back.
func (m *Machine) Plug(t *testing.T) { ip(t, "link", "set", m.port, "up") }

// Isolate lets no packet from or to a machine through the switch. The machine does not notice.
func (m *Machine) Isolate(t *testing.T) { ip(t, "link", "set", m.port, "nomaster") }

// Join undoes Isolate.
func (m *Machine) Join(t *testing.T) { ip(t, "link", "set", m.port, "master", lan) }

// Active reports whether a machine has the floating addresses.
func (m *Machine) Active(t *testing.T) bool {
	return strings.Contains(ip(t, "-n", m.namespace, "-4", "addr", "show", "eth0"), "inet "+Floating+"/")
}

// Metrics returns what the bridge of a machine counts.
func (m *Machine) Metrics(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("ip", "netns", "exec", m.namespace, "curl", "--silent", "--max-time", "5", "http://127.0.0.1:9090/metrics").Output()
	if err != nil {
		t.Fatalf("metrics of machine %s: %v", m.Name, err)
	}
	return string(out)
}

// Start starts a program on a machine.
func (m *Machine) Start(t *testing.T, name string, args ...string) *Process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{log: log.Name(), ended: make(chan struct{})}
	p.cmd = exec.Command("ip", append([]string{"netns", "exec", m.namespace, name}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.End(syscall.SIGTERM)
		_ = log.Close()
		if t.Failed() {
			text := p.Log()
			t.Logf("machine %s, %s:\n%s", m.Name, filepath.Base(name), text[max(0, len(text)-6000):])
		}
	})
	return p
}

// A Process is a program on a machine.
type Process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// End sends a signal and waits for the end, and after ten seconds kills.
func (p *Process) End(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // an error means that it has ended
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Log is what the program has written.
func (p *Process) Log() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
