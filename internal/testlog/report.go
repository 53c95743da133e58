package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// silence is how long a report prints nothing before it says which tests are running.
const silence = 30 * time.Second

// An event is a line of go test -json: see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// A test is a running test, or, without a name, a running package.
type test struct {
	pkg, name string
	begun     time.Time
	output    []string
}

func (t *test) String() string { return strings.TrimSpace(shorten(t.pkg) + " " + t.name) }

// A report turns the events of one go test into lines for a reader.
type report struct {
	name     string // begins every line
	slow     time.Duration
	out      io.Writer
	log      io.Writer
	failures io.Writer // gets the failures again, for the end of a long run

	running                 map[[2]string]*test // by package and name
	failedIn                map[string]int      // failed tests, by package
	passed, failed, skipped int
	testsIn                 map[string]int // tests that have ended, by package
	printed                 time.Time
}

func newReport(name string, slow time.Duration, out, log, failures io.Writer) *report {
	return &report{
		name: name, slow: slow, out: out, log: log, failures: failures,
		running: make(map[[2]string]*test), failedIn: make(map[string]int), testsIn: make(map[string]int),
		printed: time.Now(),
	}
}

// follow handles events until the channel is closed.
func (r *report) follow(events <-chan event, tick <-chan time.Time) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			r.handle(e)
		case <-tick:
			r.stillRunning()
		}
	}
}

func (r *report) handle(e event) {
	if e.Action == "build-output" {
		fmt.Fprint(r.log, e.Output)
		r.printf("%s", e.Output)
		return
	}
	t := r.test(e)
	switch e.Action {
	case "output":
		fmt.Fprintf(r.log, "%s: %s", shorten(e.Package), e.Output) // packages run side by side
		if !isFrame(e.Output) {
			t.output = append(t.output, e.Output)
		}
	case "pass", "fail", "skip":
		delete(r.running, [2]string{e.Package, e.Test})
		if e.Test == "" {
			r.packageEnded(t, e)
		} else {
			r.testEnded(t, e)
		}
	}
}

// test returns the test of an event. The first event of a test starts it.
func (r *report) test(e event) *test {
	key := [2]string{e.Package, e.Test}
	t := r.running[key]
	if t == nil {
		t = &test{pkg: e.Package, name: e.Test, begun: time.Now()}
		r.running[key] = t
	}
	return t
}

func (r *report) testEnded(t *test, e event) {
	r.testsIn[t.pkg]++
	took := time.Duration(e.Elapsed * float64(time.Second))
	switch e.Action {
	case "pass":
		r.passed++
		if took >= r.slow {
			r.printf("      %s (%.1fs)", t, e.Elapsed)
		}
	case "skip":
		r.skipped++
		r.printf("skip  %s: %s", t, strings.TrimSpace(strings.Join(last(t.output, 2), "")))
	case "fail":
		r.failedIn[t.pkg]++
		r.failed++
		r.fail(t, "%s (%.1fs)", t, e.Elapsed)
	}
}

// packageEnded handles the end of a package. A package that fails without a failed test did not
// build, or its process died. packageEnded counts this as one failed test, and also counts
// every test that was running then as failed.
func (r *report) packageEnded(t *test, e event) {
	var unfinished []*test
	for key, left := range r.running {
		if left.pkg == t.pkg {
			delete(r.running, key)
			unfinished = append(unfinished, left)
		}
	}
	if e.Action != "fail" {
		word := "ok  "
		if r.testsIn[t.pkg] == 0 {
			word = "none"
		}
		r.printf("%s  %s (%d tests, %.1fs)", word, shorten(t.pkg), r.testsIn[t.pkg], e.Elapsed)
		return
	}
	for _, left := range unfinished {
		r.failed++
		r.failedIn[t.pkg]++
		r.fail(left, "%s: did not end", left)
	}
	if n := r.failedIn[t.pkg]; n > 0 {
		r.fail(t, "%s (%d tests failed, %.1fs)", shorten(t.pkg), n, e.Elapsed)
	} else {
		r.failed++
		r.fail(t, "%s: no test failed, but the package did (%.1fs)", shorten(t.pkg), e.Elapsed)
	}
}

// Bounds on the lines printed of a failed test. The log has all of its lines.
const (
	saidLines    = 40  // the last lines, in the output
	againLines   = 10  // the last lines, in the failures, of a test that has no message
	crashLines   = 60  // lines from the first sign of a crash on, in both
	messageLines = 5   // messages of the test before the last lines
	saidOctets   = 400 // of one line
)

// message matches what testing.T prints: the place in a test's file, and the first line of a message.
var message = regexp.MustCompile(`^\s*\w+\.go:\d+: `)

// fail prints that a test failed and what it said, and writes both to the failures.
func (r *report) fail(t *test, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	r.printf("FAIL  %s", line)
	fmt.Fprint(r.out, t.said(saidLines)) // at once: other steps print to the same terminal
	fmt.Fprintf(r.failures, "FAIL  %s: %s\n%s", r.name, line, t.saidAgain())
}

// saidAgain returns what tells most in few lines: who reads the end of a long run may see nothing else. The lines of a
// bridge's log are long, so they are left out where the test has a message of its own.
func (t *test) saidAgain() string {
	if slices.ContainsFunc(t.output, message.MatchString) {
		return t.said(0)
	}
	return t.said(againLines)
}

// said returns the last n lines that a failed test printed. The lines of a crash and the first
// messages of the test come before them: a long log may follow the message that says what failed.
func (t *test) said(n int) string {
	rest := t.output
	crash := slices.IndexFunc(rest, func(line string) bool {
		return strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") ||
			strings.Contains(line, "WARNING: DATA RACE")
	})
	var show []string
	if crash >= 0 {
		end := min(crash+crashLines, len(rest))
		show, rest = rest[crash:end:end], rest[end:]
	}
	end := last(rest, n)
	for _, line := range rest[:len(rest)-len(end)] {
		if len(show) < messageLines && message.MatchString(line) {
			show = append(show, line)
		}
	}
	var text strings.Builder
	for _, line := range append(show, end...) {
		line = strings.TrimRight(line, "\n")
		text.WriteString("    " + line[:min(len(line), saidOctets)] + "\n")
	}
	return text.String()
}

// stillRunning names the running tests when the report has printed nothing for a while.
func (r *report) stillRunning() {
	if time.Since(r.printed) < silence {
		return
	}
	var names []string
	for _, t := range r.running {
		if t.name != "" {
			names = append(names, fmt.Sprintf("%s %.0fs", t, time.Since(t.begun).Seconds()))
		}
	}
	slices.Sort(names)
	if len(names) > 4 {
		names = append(names[:4], fmt.Sprintf("and %d more", len(names)-4))
	}
	if len(names) == 0 {
		names = []string{"go test is building"}
	}
	r.printf("...   %s", strings.Join(names, ", "))
}

func (r *report) printf(format string, args ...any) {
	r.printed = time.Now()
	line := strings.TrimRight(fmt.Sprintf(format, args...), "\n")
	fmt.Fprintf(r.out, "%s %-5s %s\n", r.printed.Format(time.TimeOnly), r.name, line)
}

// isFrame reports whether a line is go test's own, about the beginning or the end of a
// test.
func isFrame(line string) bool {
	s := strings.TrimLeft(line, " ")
	return line == "PASS\n" || line == "FAIL\n" || strings.HasPrefix(s, "=== ") ||
		strings.HasPrefix(s, "--- PASS") || strings.HasPrefix(s, "--- FAIL") || strings.HasPrefix(s, "--- SKIP")
}

// shorten cuts the module's path off a package's.
func shorten(pkg string) string {
	const module = "github.com/rdmabridge/rdmabridge"
	return strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
}

func last[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }
