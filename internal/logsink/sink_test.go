package logsink

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// The journal has every line of level info and above, whatever is written.
func TestJournal(t *testing.T) {
	var out bytes.Buffer
	sink := New(&out, Settings{Level: "error"})
	log := sink.Logger().With().Str("upstream", "nfs").Logger()
	log.Debug().Msg("a")
	log.Info().Str("event", "upstream_connected").Msg("b")
	log.Error().Msg("c")
	events := sink.journal.Events()
	if len(events) != 2 || events[0].Text != "c" || events[1].Event != "upstream_connected" || events[1].Fields["upstream"] != "nfs" {
		t.Errorf("events %+v", events)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"message":"c"`) {
		t.Errorf("written:\n%s", got)
	}
	if (*Sink)(nil).Events() == nil {
		t.Error("the events of no sink are null in JSON")
	}
}

// An override ends by itself, and a reload meanwhile changes only what comes after it.
func TestLogOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := New(io.Discard, Settings{Level: "info"})
		want := func(now, configured zerolog.Level, until time.Duration) {
			t.Helper()
			n, c, u := sink.Levels()
			if n != now || c != configured || (until == 0) != u.IsZero() || until != 0 && time.Until(u) != until {
				t.Errorf("levels %v, %v, until %v; want %v, %v, in %v", n, c, u, now, configured, until)
			}
		}
		sink.Override(zerolog.DebugLevel, 10*time.Minute)
		want(zerolog.DebugLevel, zerolog.InfoLevel, 10*time.Minute)
		sink.Set(Settings{Level: "warn", Format: Console})
		want(zerolog.DebugLevel, zerolog.WarnLevel, 10*time.Minute)
		sink.Override(zerolog.ErrorLevel, time.Hour)
		time.Sleep(30 * time.Minute)
		want(zerolog.ErrorLevel, zerolog.WarnLevel, 30*time.Minute)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		want(zerolog.WarnLevel, zerolog.WarnLevel, 0)
		sink.Override(zerolog.DebugLevel, time.Hour)
		sink.Override(zerolog.DebugLevel, 0)
		want(zerolog.WarnLevel, zerolog.WarnLevel, 0)
	})
}

// Lines have a priority if standard error is what $JOURNAL_STREAM names, and only then.
func TestJournaldPriorities(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	info, err := w.Stat()
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	read := func(stream string, format Format) string {
		t.Setenv("JOURNAL_STREAM", stream)
		log := New(w, Settings{Level: "debug", Format: format}).Logger()
		log.Debug().Msg("a")
		log.Info().Msg("a")
		log.Warn().Msg("a")
		log.Error().Msg("a")
		b := make([]byte, 4096)
		n, err := r.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	here := fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
	for _, format := range []Format{JSON, Console} {
		var priorities strings.Builder
		for line := range strings.Lines(read(here, format)) {
			priorities.WriteString(line[:3])
		}
		if got := priorities.String(); got != "<7><6><4><3>" {
			t.Errorf("%d: priorities %s", format, got)
		}
		for _, other := range []string{"", "1:1", here + "0"} {
			if got := read(other, format); strings.HasPrefix(got, "<") {
				t.Errorf("JOURNAL_STREAM=%s, %d: a priority in %q", other, format, got)
			}
		}
	}
}

// TestAuto: lines are for people on a terminal, whatever its colours, and JSON elsewhere.
func TestAuto(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer pty.Close()
	t.Setenv("NO_COLOR", "1")
	for _, tc := range []struct {
		to     io.Writer
		format Format
		people bool
	}{{pty, Auto, true}, {pty, JSON, false}, {io.Discard, Auto, false}, {io.Discard, Console, true}} {
		if got := New(tc.to, Settings{Format: tc.format}).ForPeople(); got != tc.people {
			t.Errorf("%T, format %d: for people is %t, want %t", tc.to, tc.format, got, tc.people)
		}
	}
}

// TestPlainErrors: errors have no names of packages, and an error that is nil is none.
func TestPlainErrors(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, Settings{Level: "info"}).Logger()
	log.Info().Err(fmt.Errorf("tcpframe: %w", io.EOF)).Msg("a")
	log.Info().Err(nil).Msg("b")
	log.Info().Err((*os.PathError)(nil)).Msg("c")
	if s := out.String(); !strings.Contains(s, `"error":"EOF"`) || strings.Count(s, "error") != 1 || strings.Count(s, "\n") != 3 {
		t.Error(s)
	}
}

// During a hand-over each line says which process wrote it.
func TestLogRole(t *testing.T) {
	var out bytes.Buffer
	sink := New(&out, Settings{Level: "info"})
	log := sink.Logger()
	log.Info().Msg("alone")
	sink.SayProcess()
	sink.SetRole("new")
	log.Info().Msg("new")
	sink.SetRole("")
	log.Info().Msg("after")
	lines := strings.Split(out.String(), "\n")
	pid := fmt.Sprintf(`"pid":%d`, os.Getpid())
	if strings.Contains(lines[0], "pid") || !strings.Contains(lines[1], pid+`,"role":"new"`) || !strings.Contains(lines[2], pid) || strings.Contains(lines[2], "role") {
		t.Errorf("lines:\n%s", out.String())
	}
}

// TestLogBlocked: loggers do not wait for a pipe that nobody reads. When somebody does, the log says how
// many lines are missing.
func TestLogBlocked(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sink := NewQueued(w, Settings{Level: "info"})
	log := sink.Logger()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			log.Info().Str("event", "listening").Str("address", strings.Repeat("x", 1000)).Msg("m")
		}
	}()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatal("a logger waits for the pipe")
	}
	type lost struct{ lines, suppressed int }
	said := make(chan lost, 1)
	go func() {
		var n lost
		for scan := bufio.NewScanner(r); scan.Scan(); {
			var line struct {
				Event      string
				Suppressed int
			}
			if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
				t.Error(err)
			}
			if line.Event == "log_lines_lost" {
				n.suppressed = line.Suppressed
				break
			}
			n.lines++
		}
		said <- n
	}()
	select {
	case n := <-said:
		if n.lines+n.suppressed != 2000 || n.suppressed == 0 {
			t.Errorf("%d lines, and %d are said to be missing of 2000", n.lines, n.suppressed)
		}
	case <-time.After(testkit.Patience):
		t.Error("the log does not say that lines are missing")
	}
	log.Info().Msg("the last")
	sink.Close()
	b := make([]byte, 4096)
	if n, err := r.Read(b); err != nil || !strings.Contains(string(b[:n]), "the last") {
		t.Errorf("read %s, %v", b[:n], err)
	}
	w.Close()
	if mayBlock(new(bytes.Buffer)) {
		t.Error("a buffer may block")
	}
}
