// Testlog runs go test and shows how far it is: a line for every package, for every slow
// test and for every test that failed or was skipped, as soon as each is known.
//
//	go run ./internal/testlog [-name NAME] [-slow TIME] [-log FILE] [-tally FILE] [-failures FILE] -- ARG...
//
// It passes the ARGs to go test -json. Behind the line of a failed test it shows the output
// of that test. The log receives the output of all tests. The tally receives one line: how
// many tests passed, failed and were skipped. The failures receive what failed, and how. The
// exit status is 1 when anything failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

func main() {
	name := flag.String("name", "test", "`name` of this run, shown in every line")
	slow := flag.Duration("slow", 5*time.Second, "show a test that passed when it took this long")
	log := flag.String("log", os.DevNull, "write the output of all tests to this `file`")
	tally := flag.String("tally", "", "append a line to this `file`: tests passed, failed and skipped")
	failures := flag.String("failures", os.DevNull, "append what failed, and the last lines it printed, to this `file`")
	flag.Parse()

	failed, err := run(*name, *slow, files{*log, *tally, *failures}, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// files are the names of the files that a run writes.
type files struct{ log, tally, failures string }

// run runs go test with args and reports whether anything failed.
func run(name string, slow time.Duration, to files, args []string) (failed bool, err error) {
	log, err := os.Create(to.log)
	if err != nil {
		return true, err
	}
	defer func() { err = cmp.Or(err, log.Close()) }()
	failures, err := os.OpenFile(to.failures, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return true, err
	}
	defer func() { err = cmp.Or(err, failures.Close()) }()
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return true, err
	}
	if err := cmd.Start(); err != nil {
		return true, err
	}
	r := newReport(name, slow, os.Stdout, log, failures)
	r.follow(read(out), time.Tick(time.Second))
	if err := cmd.Wait(); err != nil && r.failed == 0 {
		r.fail(&test{}, "go test: %v", err)
		r.failed++
	}
	if to.tally != "" {
		err = appendLine(to.tally, fmt.Sprintln(r.passed, r.failed, r.skipped))
	}
	return r.failed > 0, err
}

// read reads the output of go test -json, one event a line, and sends the events. A line that
// is no event is sent as output of a build.
func read(in io.Reader) <-chan event {
	events := make(chan event)
	go func() {
		defer close(events)
		lines := bufio.NewReader(in)
		for {
			line, err := lines.ReadBytes('\n')
			if len(line) > 0 {
				var e event
				if json.Unmarshal(line, &e) != nil {
					e = event{Action: "build-output", Output: string(line)}
				}
				events <- e
			}
			if err != nil {
				return
			}
		}
	}()
	return events
}

func appendLine(name, line string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return cmp.Or(err, f.Close())
}
