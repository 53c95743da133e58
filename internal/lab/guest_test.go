//go:build lab

package lab

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A farEnd is a server that the guest's client mounts: two TCP ports of this host, which the
// client addresses by name, or by address if there is none.
type farEnd struct {
	nfs, mount int
	host       string
	env        string // further variables for guest/lib.sh, NAME=VALUE ...
}

func (f farEnd) script(command, vers string) string {
	return fmt.Sprintf("%s %s %s %s %d %d", f.env, command, vers, cmp.Or(f.host, "10.0.2.2"), f.nfs, f.mount)
}

// A guest is a running lab guest. Ports are on 127.0.0.1 of this host.
type guest struct {
	owner            *testing.T // the guest ends with this test, even if another test booted it again
	dir              string     // the guest's /host
	console          string
	args             []string // of boot.sh
	qemu             *process
	nfs, mount, rdma int
	lockd            int
	jobs             int
}

func bootGuest(t *testing.T) *guest {
	t.Helper()
	g := newServer(t, packGuest(t))
	g.boot(t)
	return g
}

// newServer returns a guest with siw and knfsd.
func newServer(t *testing.T, initrd string) *guest {
	t.Helper()
	return newGuest(t, initrd,
		"--mem", "5120", // with less, knfsd accepts no WRITE of 1 MiB
		"--append", "lab.rdma=siw lab.server=1")
}

// packGuest builds the root file system of guests with these options of mkinitrd.sh, unless RDMABRIDGE_LAB_INITRD names
// one.
func packGuest(t *testing.T, options ...string) (initrd string) {
	t.Helper()
	if initrd = os.Getenv("RDMABRIDGE_LAB_INITRD"); initrd != "" {
		return initrd
	}
	initrd = filepath.Join(t.TempDir(), "guest.cpio")
	command(t, 3*time.Minute, "../../deploy/lab/mkinitrd.sh", append(options, initrd)...)
	return initrd
}

// newGuest returns a guest that boots with these arguments of boot.sh and those for its
// ports and files.
func newGuest(t *testing.T, initrd string, args ...string) *guest {
	t.Helper()
	dir := t.TempDir()
	p := freePorts(t, 4)
	g := &guest{
		owner: t,
		dir:   filepath.Join(dir, "host"), console: filepath.Join(dir, "console"),
		nfs: p[0], mount: p[1], rdma: p[2], lockd: p[3],
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	g.args = append([]string{
		initrd, "--share", g.dir, "--log", g.console,
		"--fwd", fmt.Sprintf("%d:2049", g.nfs), "--fwd", fmt.Sprintf("%d:20048", g.mount), "--fwd", fmt.Sprintf("%d:20049", g.rdma),
		"--fwd", fmt.Sprintf("%d:32803", g.lockd),
	}, args...)
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(g.console)
			t.Logf("the guest's console:\n%s", tail(text, 60))
		}
	})
	return g
}

// forward returns a port of this host's 127.0.0.1 that is forwarded to port to of a guest that has not
// been launched.
func (g *guest) forward(t *testing.T, to int) int {
	t.Helper()
	p := freePorts(t, 1)[0]
	g.args = append(g.args, "--fwd", fmt.Sprintf("%d:%d", p, to))
	return p
}

// boot starts a guest that is not running and waits until it is ready.
func (g *guest) boot(t *testing.T) {
	t.Helper()
	g.launch(t)
	g.ready(t)
}

// launch starts a guest; ready waits for it.
func (g *guest) launch(t *testing.T) {
	t.Helper()
	if err := os.Remove(g.console); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	g.qemu = start(g.owner, "../../deploy/lab/boot.sh", g.args...)
}

// bootTime bounds how long a guest may take to boot, under emulation on a busy host.
const bootTime = 4 * time.Minute

// patience is the least time that a script has. Beside much other load, an emulated guest takes a minute to start a program.
const patience = 5 * time.Minute

// ready waits for a guest that was launched. Under emulation about one boot in fifty hangs
// before the network is up; ready then boots the guest again.
func (g *guest) ready(t *testing.T) {
	t.Helper()
	booted := func() bool { return g.isReady(t) }
	if testkit.Settles(bootTime, booted) {
		return
	}
	text, _ := os.ReadFile(g.console)
	t.Logf("the guest has not booted in %v, and gets another try; its console:\n%s", bootTime, tail(text, 20))
	g.qemu.end(t, syscall.SIGKILL)
	g.launch(t)
	waitFor(t, bootTime, "the guest", booted)
}

// isReady reports whether a guest has booted. It fails the test if the guest has ended.
func (g *guest) isReady(t *testing.T) bool {
	t.Helper()
	if !g.qemu.alive() {
		t.Fatalf("the guest ended:\n%s", g.qemu.output())
	}
	text, _ := os.ReadFile(g.console)
	return bytes.Contains(text, []byte("lab: READY"))
}

// becomeRXE gives the guest rxe0 in the place of siw0.
func (g *guest) becomeRXE(t *testing.T) {
	t.Helper()
	g.job(t, time.Minute, "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0 && rdma link del siw0")
}

// put copies a program of this host to the guest's /host/NAME.
func (g *guest) put(t *testing.T, program, name string) {
	t.Helper()
	command(t, time.Minute, "cp", program, filepath.Join(g.dir, name))
}

// job runs a shell script in the guest and returns its output. The test fails if the script
// fails or does not end in time; the guest then stays as it is.
func (g *guest) job(t *testing.T, timeout time.Duration, script string) string {
	t.Helper()
	return g.begin(t, script).wait(t, timeout)
}

// A guestJob is a script that runs in the guest.
type guestJob struct {
	g            *guest
	name, script string
	begun        time.Time
}

func (g *guest) begin(t *testing.T, script string) *guestJob {
	t.Helper()
	g.jobs++
	j := &guestJob{g, filepath.Join(g.dir, fmt.Sprintf("job%03d", g.jobs)), script, time.Now()}
	if err := os.WriteFile(j.name+".new", []byte(script+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(j.name+".new", j.name+".job"); err != nil {
		t.Fatal(err)
	}
	return j
}

// state is what the kernel of the guest has logged last, and how much room there is, for a job that has failed.
func (g *guest) state(t *testing.T) []byte {
	t.Helper()
	j := g.begin(t, "dmesg | tail -30; free -m; df -m / /tmp /export /host")
	testkit.Settles(patience, func() bool {
		_, err := os.Stat(j.name + ".rc")
		return err == nil || !g.qemu.alive()
	})
	out, _ := os.ReadFile(j.name + ".out")
	return out
}

// said reports whether the script has written text.
func (j *guestJob) said(text string) bool {
	out, _ := os.ReadFile(j.name + ".out")
	return bytes.Contains(out, []byte(text))
}

// wait waits for the end of the script, like job.
func (j *guestJob) wait(t *testing.T, timeout time.Duration) string {
	t.Helper()
	g, name, script, begun := j.g, j.name, j.script, j.begun
	timeout = max(timeout, patience)
	var rc []byte
	if !testkit.Settles(timeout-time.Since(begun), func() bool {
		var err error
		if rc, err = os.ReadFile(name + ".rc"); err == nil {
			return true
		}
		if !g.qemu.alive() {
			t.Fatalf("the guest ended under %q", script)
		}
		return false
	}) {
		out, _ := os.ReadFile(name + ".out")
		t.Fatalf("%q has not ended after %v; so far:\n%s", script, timeout, tail(out, 40))
	}
	out, err := os.ReadFile(name + ".out")
	if err != nil {
		t.Fatal(err)
	}
	if s := strings.TrimSpace(string(rc)); s != "0" {
		// The reason is most often the last line of the script, and CI shows the end of a long message.
		t.Fatalf("%q: status %s after %v; the guest's kernel and room:\n%s\nthe script's output:\n%s",
			script, s, time.Since(begun).Round(time.Second), g.state(t), failures(out, 40))
	}
	return string(out)
}
