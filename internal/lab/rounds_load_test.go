//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// roundsVersions are the NFS versions that guest/rounds.sh mounts, and roundsLoops is how many
// metadata loops it runs on each.
var roundsVersions = []string{"3", "4.0", "4.1", "4.2"}

const roundsLoops = 2

// roundsData is more than the metadata loops write or read in a second or two.
const roundsData = 64 << 10

// An operation is a line of guest/meta.c's log, in time of this host.
type operation struct {
	loop       string
	begun, end time.Time
	name       string
	pass       int
	outcome    string // ok, again, or the error
}

func (o operation) took() time.Duration { return o.end.Sub(o.begun) }

func (o operation) String() string {
	return fmt.Sprintf("%s: %s of pass %d, %s to %s (%v): %s", o.loop, o.name, o.pass,
		o.begun.Format("15:04:05.000"), o.end.Format("15:04:05.000"), o.took(), o.outcome)
}

// A load is guest/rounds.sh, which runs until end is called.
type load struct {
	g     *guest
	job   *guestJob
	read  map[string]int // octets of each metadata loop's log
	zeros []time.Time    // when the guest's clock was 0, as its latest beats tell

	beat  time.Time // the latest
	moved []int64   // octets between client and server, for each version, at that time
}

// startLoad starts it through a bridge at an address and port as the guest sees them.
func startLoad(t *testing.T, g *guest, host string, port int, longest time.Duration) *load {
	t.Helper()
	l := &load{g: g, read: make(map[string]int), moved: make([]int64, len(roundsVersions))}
	l.job = g.begin(t, fmt.Sprintf("MAXLAT=%.0f LOOPS=%d VERSIONS='%s' /lab/rounds.sh %s %d %d", longest.Seconds(), roundsLoops, strings.Join(roundsVersions, " "), host, port, port))
	waitFor(t, 2*time.Minute, "the load", func() bool {
		l.alive(t)
		_ = l.news(t) // for the clock
		return l.job.said("load runs") && slices.Min(l.moved) > 0
	})
	return l
}

// alive fails if the load has ended.
func (l *load) alive(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(l.job.name + ".rc"); err == nil || !l.g.qemu.alive() {
		l.job.wait(t, time.Second)
		t.Fatal("the load has ended")
	}
	if _, err := os.Stat(filepath.Join(l.g.dir, "failed")); err == nil {
		for _, v := range roundsVersions {
			text, _ := os.ReadFile(filepath.Join(l.g.dir, "fio-"+v))
			t.Logf("fio, version %s:\n%s", v, tail(text, 40))
		}
		t.Fatal("fio has failed")
	}
}

// news returns the operations that have ended since the last call, and those that the loops
// waited for. It fails if an operation had a wrong result.
func (l *load) news(t *testing.T) (ops []operation) {
	t.Helper()
	if !l.listen(t) {
		return nil
	}
	zero := slices.MinFunc(l.zeros, time.Time.Compare)
	for _, v := range roundsVersions {
		for i := range roundsLoops {
			loop := fmt.Sprintf("meta-%s-%d", v, i+1)
			text, err := os.ReadFile(filepath.Join(l.g.dir, loop))
			if err != nil {
				continue // it has not begun
			}
			whole := bytes.LastIndexByte(text, '\n') + 1
			for line := range strings.Lines(string(text[l.read[loop]:whole])) {
				o := operation{loop: loop}
				var begun, end int64
				if n, err := fmt.Sscan(line, &begun, &end, &o.name, &o.pass, &o.outcome); n != 5 {
					t.Fatalf("%s says %q: %v", loop, line, err)
				}
				o.begun, o.end = zero.Add(time.Duration(begun)*time.Millisecond), zero.Add(time.Duration(end)*time.Millisecond)
				if o.outcome != "ok" && o.outcome != "again" {
					t.Errorf("%v: %s", o, line)
				}
				ops = append(ops, o)
			}
			l.read[loop] = whole
		}
	}
	return ops
}

// listen reads the guest's latest beat. It returns false before the first.
func (l *load) listen(t *testing.T) bool {
	t.Helper()
	f, err := os.Open(filepath.Join(l.g.dir, "beat"))
	if err != nil {
		return len(l.zeros) > 0
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if !st.ModTime().After(l.beat) {
		return len(l.zeros) > 0
	}
	var uptime float64
	moved := make([]int64, len(roundsVersions))
	fields := []any{&uptime}
	for v := range moved {
		fields = append(fields, &moved[v])
	}
	if _, err := fmt.Fscan(f, fields...); err != nil {
		return len(l.zeros) > 0 // nothing is mounted yet
	}
	l.beat, l.moved = st.ModTime(), moved
	// A beat is written a little after its clock was read, now more and now less. The two
	// clocks may run apart in the long run.
	l.zeros = append(l.zeros, l.beat.Add(-time.Duration(uptime*1e9)))
	l.zeros = l.zeros[max(0, len(l.zeros)-20):]
	return true
}

// state logs the state of the load.
func (l *load) state(t *testing.T) {
	t.Helper()
	t.Log(l.g.job(t, time.Minute, "STEP=state /lab/rounds.sh 0 0 0"))
	for _, v := range roundsVersions {
		for i := range roundsLoops {
			text, _ := os.ReadFile(filepath.Join(l.g.dir, fmt.Sprintf("meta-%s-%d", v, i+1)))
			t.Logf("version %s, loop %d:\n%s", v, i+1, tail(text, 3))
		}
	}
}

// end lets the load finish and verify its data.
func (l *load) end(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(l.g.dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l.job.begun = time.Now()
	l.job.wait(t, 3*time.Minute)
	for _, v := range roundsVersions {
		text, err := os.ReadFile(filepath.Join(l.g.dir, "fio-"+v))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("fio, version %s: %d times written and verified, or verified again; the longest read or write of each:\n%s", v, bytes.Count(text, []byte("\n")), text)
	}
}
