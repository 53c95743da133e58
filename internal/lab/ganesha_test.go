//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A ganesha is nfs-ganesha on this host. It serves a directory over TCP. The guest has the
// same directory as /host/ganesha over 9P.
type ganesha struct {
	owner      *testing.T // the process ends with this test, even if another test started it again
	locks      string     // the variable LOCKS of ganesha.sh
	args       []string   // of ganesha.sh
	process    *process
	nfs, mount int
	dir, log   string
	read       int // octets of the log that wantQuiet has read
}

// manyNames is the number of entries of the directory names in the export of a ganesha. The
// guest would need minutes to create them over 9P.
const manyNames = 5000

// mayRunGanesha reports whether this host can run ganesha.
func mayRunGanesha() bool {
	m, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && bytes.Contains(m, []byte("4294967295"))
}

func startGanesha(t *testing.T, g *guest) *ganesha {
	t.Helper()
	if !mayRunGanesha() {
		t.Skip("ganesha opens files by their handles, which takes the host's own root")
	}
	n := newGanesha(t, g)
	if err := os.MkdirAll(filepath.Join(n.dir, "names"), 0o777); err != nil {
		t.Fatal(err)
	}
	for i := range manyNames {
		name := filepath.Join(n.dir, "names", fmt.Sprintf("%d.%s", i, strings.Repeat("n", i%195)))
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n.start(t)
	return n
}

// newGanesha returns a ganesha that has not started. The further arguments are ganesha.sh's.
func newGanesha(t *testing.T, g *guest, more ...string) *ganesha {
	t.Helper()
	p, state := freePorts(t, 2), t.TempDir()
	n := &ganesha{
		owner: t, nfs: p[0], mount: p[1],
		dir: filepath.Join(g.dir, "ganesha"), log: filepath.Join(state, "log"),
	}
	n.args = append([]string{n.dir, strconv.Itoa(n.nfs), strconv.Itoa(n.mount), state}, more...)
	if err := os.MkdirAll(n.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(n.log)
			t.Logf("ganesha's log:\n%s%s", tail(text, 40), n.process.output())
		}
	})
	return n
}

// start starts a ganesha that does not run, and waits until it serves.
func (n *ganesha) start(t *testing.T) {
	t.Helper()
	n.process = start(n.owner, "env", append([]string{"LOCKS=" + n.locks, "../../deploy/lab/ganesha.sh"}, n.args...)...)
	const ready = "NFS SERVER INITIALIZED"
	waitFor(t, time.Minute, "ganesha", func() bool {
		if !n.process.alive() {
			t.Fatalf("ganesha ended:\n%s", n.process.output())
		}
		text, _ := os.ReadFile(n.log)
		i := bytes.Index(text[n.read:], []byte(ready))
		if i >= 0 {
			n.read += i + len(ready)
		}
		return i >= 0
	})
}

// complaint matches a warning or an error in the log of ganesha.
var complaint = regexp.MustCompile(`(?m)^.* :(FATAL|MAJ|CRIT|WARN) :.*$`)

// wantQuiet fails if ganesha has logged a warning or an error other than that there is no
// D-Bus.
func (n *ganesha) wantQuiet(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(n.log)
	if err != nil {
		t.Fatal(err)
	}
	news := text[n.read:]
	n.read = len(text)
	for _, line := range complaint.FindAll(news, -1) {
		if !bytes.Contains(line, []byte(" :DBUS :")) {
			t.Errorf("ganesha complained: %s", line)
		}
	}
}

func (n *ganesha) stop(t *testing.T) {
	t.Helper()
	n.process.end(t, syscall.SIGTERM)
	if err := n.process.err; err != nil {
		t.Errorf("ganesha ended with %v", err)
	}
}
