package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Events as go test -json prints them, without their times.
const (
	passedTest   = `{"Action":"run","Package":"p","Test":"TestA"}{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}`
	slowTest     = `{"Action":"pass","Package":"p","Test":"TestSlow/sub","Elapsed":6.25}`
	skippedTest  = `{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: needs root\n"}{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}`
	failedTest   = `{"Action":"output","Package":"p","Test":"TestC","Output":"=== RUN   TestC\n"}{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:1: got 1, want 2\n"}{"Action":"fail","Package":"p","Test":"TestC","Elapsed":0.5}`
	passedPkg    = `{"Action":"pass","Package":"p","Elapsed":7}`
	failedPkg    = `{"Action":"output","Package":"p","Output":"FAIL\n"}{"Action":"output","Package":"p","Output":"exit status 1\n"}{"Action":"fail","Package":"p","Elapsed":7}`
	unbuilt      = `{"ImportPath":"q [q.test]","Action":"build-output","Output":"q_test.go:3:30: undefined: x\n"}{"Action":"fail","Package":"q","Elapsed":0}`
	panickedTest = `{"Action":"run","Package":"p","Test":"TestD"}{"Action":"output","Package":"p","Test":"TestD","Output":"panic: boom\n"}`
)

func TestReport(t *testing.T) {
	tests := []struct {
		name   string
		events []string
		want   []string // without the time and the run's name
		tally  [3]int   // passed, failed, skipped
	}{
		{"passed", []string{passedTest, passedPkg}, []string{"ok    p (1 tests, 7.0s)"}, [3]int{1, 0, 0}},
		{"slow", []string{slowTest, passedPkg}, []string{"      p TestSlow/sub (6.2s)", "ok    p (1 tests, 7.0s)"}, [3]int{1, 0, 0}},
		{"skipped", []string{skippedTest, passedPkg}, []string{"skip  p TestB: b_test.go:1: needs root", "ok    p (1 tests, 7.0s)"}, [3]int{0, 0, 1}},
		{"no tests", []string{passedPkg}, []string{"none  p (0 tests, 7.0s)"}, [3]int{}},
		{"failed", []string{passedTest, failedTest, failedPkg}, []string{
			"FAIL  p TestC (0.5s)", "c_test.go:1: got 1, want 2", "FAIL  p (1 tests failed, 7.0s)", "exit status 1",
		}, [3]int{1, 1, 0}},
		{"did not build", []string{unbuilt}, []string{
			"q_test.go:3:30: undefined: x", "FAIL  q: no test failed, but the package did (0.0s)",
		}, [3]int{0, 1, 0}},
		{"process ended", []string{panickedTest, failedPkg}, []string{
			"FAIL  p TestD: did not end", "panic: boom", "FAIL  p (1 tests failed, 7.0s)", "exit status 1",
		}, [3]int{0, 1, 0}},
		{"exit status", []string{passedTest, failedPkg}, []string{
			"FAIL  p: no test failed, but the package did (7.0s)", "exit status 1",
		}, [3]int{1, 1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, failures bytes.Buffer
			r := newReport("race", 5*time.Second, &out, io.Discard, &failures)
			r.follow(read(strings.NewReader(strings.ReplaceAll(strings.Join(tt.events, ""), "}{", "}\n{"))), nil)
			if got, want := lines(out.String()), strings.Join(tt.want, "\n"); got != want {
				t.Errorf("report:\n%s\nwant:\n%s", got, want)
			}
			if got := [3]int{r.passed, r.failed, r.skipped}; got != tt.tally {
				t.Errorf("passed, failed, skipped = %v, want %v", got, tt.tally)
			}
			if got, want := failed(failures.String()), failed(out.String()); got != want {
				t.Errorf("failures:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// lines removes the beginning of each line: the time and the run's name, or the indent of a
// test's output.
func lines(s string) string {
	var got []string
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "    "); ok {
			line = strings.TrimLeft(rest, " ")
		} else {
			line = line[len("15:04:05 race  "):]
		}
		got = append(got, line)
	}
	return strings.Join(got, "\n")
}

// failed returns what follows FAIL in the lines that have it.
func failed(s string) string {
	var got []string
	for line := range strings.Lines(s) {
		if _, rest, ok := strings.Cut(line, "FAIL  "); ok {
			got = append(got, strings.TrimPrefix(rest, "race: "))
		}
	}
	return strings.Join(got, "")
}

// A failed test shows its last lines, and from a panic on the first ones, too.
func TestReportSaid(t *testing.T) {
	noise := strings.Split(strings.Repeat("noise\n", 100), "\n")[:100]
	if got := strings.Count((&test{output: noise}).said(saidLines), "noise"); got != saidLines {
		t.Errorf("a failed test shows %d lines, want %d", got, saidLines)
	}
	got := (&test{output: append([]string{"early\n", "panic: boom\n"}, noise...)}).said(saidLines)
	if strings.Contains(got, "early") || !strings.HasPrefix(got, "    panic: boom\n") || strings.Count(got, "noise") != 99 {
		t.Errorf("a test that panicked shows:\n%s", got)
	}
}

// The message that says what failed is shown although a long log follows it.
func TestReportSaidMessage(t *testing.T) {
	output := []string{"    c_test.go:1: got 1, want 2\n", "    c_test.go:9: log:\n"}
	for range 100 {
		output = append(output, "        {\"level\":\"info\"}\n")
	}
	got := (&test{output: output}).said(againLines)
	if want := 2 + againLines; strings.Count(got, "\n") != want || !strings.Contains(got, "got 1, want 2") {
		t.Errorf("a failed test shows\n%s\nwant %d lines with its message", got, want)
	}
	again := (&test{output: output}).saidAgain()
	if want := "    " + output[0] + "    " + output[1]; again != want {
		t.Errorf("the failures show\n%s\nwant\n%s", again, want)
	}
}

// A report that has had nothing to print for a while names the tests that are running.
func TestReportStillRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := newReport("race", time.Hour, &out, io.Discard, io.Discard)
		r.handle(event{Action: "run", Package: "p", Test: "TestA"})
		time.Sleep(silence - time.Second)
		r.stillRunning()
		if out.Len() > 0 {
			t.Errorf("after %v: %q, want nothing", silence-time.Second, out.String())
		}
		time.Sleep(time.Second)
		r.stillRunning()
		if got, want := lines(out.String()), "...   p TestA 30s"; got != want {
			t.Errorf("after %v: %q, want %q", silence, got, want)
		}
	})
}
