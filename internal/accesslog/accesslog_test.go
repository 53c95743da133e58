package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func record(took time.Duration, status string, failed bool) *observe.CallRecord {
	return &observe.CallRecord{
		Times:   observe.Times{Began: 1e9, Asked: 1e9 + int64(took)/10, Sent: 1e9 + int64(took)/5, Replied: 1e9 + int64(took)/2},
		Settled: 1e9 + int64(took),
		At:      time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC), XID: 0x12345678, UpstreamXID: 0x9abcdef0,
		Client: netip.MustParseAddrPort("192.0.2.1:700"), Listener: "nfs", Transport: "tcp", Upstream: "storage",
		Program: 100003, Version: 3, Procedure: 6, ProgramName: "nfs", Operation: "READ", Status: status, Failed: failed,
		BytesIn: 140, BytesOut: 1048700, Result: "answered", Shape: "chunks",
	}
}

// A sink is an Output that can block and fail.
type sink struct {
	mu    sync.Mutex
	lines bytes.Buffer
	err   error
	gate  chan struct{} // Write waits for it; nil for not
}

func (s *sink) Write(p []byte) (int, error) {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	return s.lines.Write(p)
}
func (s *sink) Flush() error  { return nil }
func (s *sink) Reopen() error { return nil }
func (s *sink) Close() error  { return nil }

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.String()
}

func start(o Options) *Log {
	m := metrics.New()
	o.Lines, o.Dropped = m.Counter(metrics.AccessLogLines), m.Counter(metrics.AccessLogDroppedLines)
	return Start(o)
}

func TestModes(t *testing.T) {
	fast, slow := record(time.Millisecond, "ok", false), record(time.Second, "ok", false)
	noent, stale, lost := record(1, "noent", true), record(1, "stale", true), record(1, "", true)
	for mode, want := range map[Mode]string{
		Failed:  "[   failed failed]",
		Slow:    "[ slow  failed failed]",
		Sampled: "[sampled slow sampled failed failed]",
		All:     "[all slow all failed failed]",
	} {
		l := start(Options{Output: new(sink), Settings: Settings{Mode: mode, Slower: time.Second, Sample: 1}})
		var got []string
		for _, r := range []*observe.CallRecord{fast, slow, noent, stale, lost} {
			got = append(got, l.settings.Load().why(r))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("mode %d chooses %v, want %s", mode, got, want)
		}
		l.Close()
	}
	l := start(Options{Output: new(sink), Settings: Settings{Mode: Sampled, Slower: time.Hour, Sample: 0.25}})
	defer l.Close()
	n := 0
	for range 100000 {
		if l.settings.Load().why(fast) != "" {
			n++
		}
	}
	if n < 24000 || n > 26000 {
		t.Errorf("a sample of 25%% chose %d of 100000 Calls", n)
	}
}

func TestLine(t *testing.T) {
	s := new(sink)
	l := start(Options{Output: s, Settings: Settings{Mode: All, Slower: time.Hour}, PID: 7})
	r := record(time.Second, "ok", false)
	r.HasNFS = true
	l.Observe(r)
	r.Upstream, r.Sent, r.Shape, r.Status, r.Replays, r.Operations, r.HasNFS, r.Rule = "", 0, "", "", 2, 3, false, "readers"
	l.Observe(r)
	l.Close()
	lines := strings.Split(strings.TrimSpace(s.String()), "\n")
	want := []string{
		`{"level":"info","pid":7,"time":"2026-01-02T03:04:05Z","event":"call","chosen":"all","listener":"nfs","transport":"tcp","peer":"192.0.2.1:700",` +
			`"upstream":"storage","xid":305419896,"upstream_xid":2596069104,"program":"nfs","version":3,"procedure":6,"operation":"READ",` +
			`"result":"answered","status":"ok","nfs_status":0,"bytes_in":140,"bytes_out":1048700,"shape":"chunks",` +
			`"seconds":1,"admission_seconds":0.1,"credit_seconds":0.1,"server_seconds":0.3,"client_seconds":0.5}`,
		`{"level":"info","pid":7,"time":"2026-01-02T03:04:05Z","event":"call","chosen":"all","listener":"nfs","transport":"tcp","peer":"192.0.2.1:700",` +
			`"rule":"readers","xid":305419896,"program":"nfs","version":3,"procedure":6,"operation":"READ","operations":3,` +
			`"result":"answered","bytes_in":140,"bytes_out":1048700,"replays":2,` +
			`"seconds":1,"admission_seconds":0.1,"credit_seconds":0.4,"server_seconds":0,"client_seconds":0.5}`,
	}
	for i, line := range lines {
		if i >= len(want) || line != want[i] {
			t.Errorf("line %d:\n got %s\nwant %s", i, line, want[i])
		}
	}
	if !strings.Contains(lines[0], `"seconds":1,`) || l.o.Lines.Value() != 2 {
		t.Errorf("%d lines counted", l.o.Lines.Value())
	}
}

// TestBlocked: an Output that blocks costs lines and no Call. The log says how many.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{gate: make(chan struct{})}
		var out bytes.Buffer
		l := start(Options{Output: s, Settings: Settings{Mode: All, Slower: time.Hour}, Log: zerolog.New(&out)})
		const more = 100
		l.Observe(record(1, "ok", false))
		synctest.Wait() // it is being written
		for range queueLen + more {
			l.Observe(record(1, "ok", false)) // returns at once: the bubble would deadlock otherwise
		}
		if n := l.o.Dropped.Value(); n != more {
			t.Errorf("%d lines dropped, want %d", n, more)
		}
		close(s.gate)
		synctest.Wait()
		if !strings.Contains(out.String(), fmt.Sprintf(`"event":"access_log_dropped","suppressed":%d`, more)) {
			t.Errorf("the log says %s", &out)
		}
		if n := strings.Count(s.String(), "\n"); n != queueLen+1 {
			t.Errorf("%d lines, want %d", n, queueLen+1)
		}
		l.Close()
		l.Observe(record(1, "ok", false)) // a loop may be late
	})
}

// Close does not wait for an Output that blocks for good.
func TestCloseBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{gate: make(chan struct{})}
		l := start(Options{Output: s, Settings: Settings{Mode: All}})
		l.Observe(record(1, "ok", false))
		began := time.Now()
		l.Close()
		if d := time.Since(began); d != closeTimeout {
			t.Errorf("Close took %v", d)
		}
		close(s.gate)
	})
}

func TestFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{err: errors.New("no space left on device")}
		var out bytes.Buffer
		l := start(Options{Output: s, Settings: Settings{Mode: All}, Log: zerolog.New(&out)})
		for range 100 {
			l.Observe(record(1, "ok", false))
		}
		synctest.Wait()
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		l.Observe(record(1, "ok", false))
		l.Close()
		if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "no space left on device") {
			t.Errorf("the log:\n%s", &out)
		}
		if d, n := l.o.Dropped.Value(), l.o.Lines.Value(); d != 100 || n != 1 {
			t.Errorf("%d lines dropped and %d written, want 100 and 1", d, n)
		}
	})
}

// TestReopen is what logrotate does: it renames the file and asks for a new one. No line is lost.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	out, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l := start(Options{Output: out, Settings: Settings{Mode: All}})
	const each = 500
	for range each {
		l.Observe(record(1, "ok", false))
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	for range each {
		l.Observe(record(1, "ok", false))
	}
	l.Close()
	total := 0
	for _, p := range []string{path, path + ".1"} {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			total++
			if !json.Valid(line) {
				t.Errorf("%s: not JSON: %s", p, line)
			}
		}
	}
	if total != 2*each {
		t.Errorf("%d lines in both files, want %d", total, 2*each)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("the file is %v, %v: others may read it", info.Mode(), err)
	}
	if _, err := OpenFile(filepath.Join(path, "x")); err == nil {
		t.Error("a file below a file")
	}
}

// A Call that is not chosen costs no memory.
func TestObserveAllocs(t *testing.T) {
	l := start(Options{Output: new(sink), Settings: Settings{Mode: Sampled, Slower: time.Second, Sample: 1e-9}})
	defer l.Close()
	r := record(time.Millisecond, "ok", false)
	if n := testing.AllocsPerRun(1000, func() {
		if l.Wants(r) {
			l.Observe(r)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	r := record(time.Millisecond, "ok", false)
	for name, s := range map[string]Settings{"slow": {Mode: Slow, Slower: time.Second}, "sampled": {Mode: Sampled, Slower: time.Second, Sample: 0.01}} {
		b.Run(name, func(b *testing.B) {
			l := start(Options{Output: new(sink), Settings: s})
			defer l.Close()
			b.ReportAllocs()
			for b.Loop() {
				if l.Wants(r) {
					l.Observe(r)
				}
			}
		})
	}
}

// everySecond fails for every second line.
type everySecond struct{ n int }

func (w *everySecond) Write(p []byte) (int, error) {
	if w.n++; w.n%2 == 0 {
		return 0, errors.New("lost")
	}
	return len(p), nil
}

// Where lines go out one by one, those that were written count as written.
func TestLostOneByOne(t *testing.T) {
	m := metrics.New()
	o := Options{
		Output: Stderr(new(everySecond)), Settings: Settings{Mode: All},
		Lines: m.Counter(metrics.AccessLogLines), Dropped: m.Counter(metrics.AccessLogDroppedLines),
	}
	l := Start(o)
	for range 100 {
		l.Observe(record(1, "ok", false))
	}
	l.Close()
	if o.Lines.Value() != 50 || o.Dropped.Value() != 50 {
		t.Errorf("%d lines, %d lost, want 50 of each", o.Lines.Value(), o.Dropped.Value())
	}
}
