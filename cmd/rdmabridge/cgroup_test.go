package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// A memoryGroup is a cgroup that limits memory, like that of a container.
type memoryGroup struct {
	dir    string
	events string // the file that counts processes killed for memory
}

// newMemoryGroup makes a cgroup below the one that this process is in. The test is skipped where
// that is not allowed.
func newMemoryGroup(t *testing.T, limit configs.Size) *memoryGroup {
	t.Helper()
	parent, file, events := "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		parent, file, events = "/sys/fs/cgroup", "memory.max", "memory.events"
	}
	g := &memoryGroup{dir: filepath.Join(parent, fmt.Sprintf("rdmabridge-test-%d", os.Getpid())), events: events}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skipf("needs a cgroup with the memory controller: %v", err)
	}
	t.Cleanup(func() {
		var err error
		if !testkit.Settles(testkit.Patience, func() bool { // a process that was waited for may still be in it for a moment
			err = os.Remove(g.dir)
			return err == nil
		}) {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.FormatInt(int64(limit), 10)), 0); err != nil {
		t.Skipf("needs a cgroup with the memory controller: %v", err)
	}
	return g
}

// command is exec.Command in the cgroup g. A nil g is none.
func (g *memoryGroup) command(name string, args ...string) *exec.Cmd {
	if g == nil {
		return exec.Command(name, args...)
	}
	script := `echo $$ > "$0/cgroup.procs" && exec "$@"`
	return exec.Command("/bin/sh", append([]string{"-c", script, g.dir, name}, args...)...)
}

// killed is how many processes of g the kernel has killed for memory.
func (g *memoryGroup) killed(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no oom_kill in %q", b)
	return 0
}

// TestStormInContainer: a bridge with the default budget in a container of 128 MiB is not killed
// for memory when clients with full slot tables wait for an upstream that does not answer.
func TestStormInContainer(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector takes several times the memory")
	}
	const limit = 128 * configs.MiB
	for _, s := range []storm{
		{clients: 30, deep: 16, size: 1 << 20, kind: configs.TransportRDMA},
		{clients: 300, deep: 64, size: 2 << 10, kind: configs.TransportTCP},
	} {
		t.Run(string(s.kind), func(t *testing.T) {
			s.kills, s.each = 1, time.Second
			s.group = newMemoryGroup(t, limit)
			s.run(t)
			if n := s.group.killed(t); n > 0 {
				t.Errorf("%d processes were killed for memory", n)
			}
		})
	}
}
