package testkit

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Main runs the tests for TestMain, and fails if goroutines outlive them or one of checks
// finds a leak of something else.
func Main(m *testing.M, checks ...func() error) {
	code := m.Run()
	if code == 0 {
		if s := leakedGoroutines(); s != "" {
			fmt.Fprintf(os.Stderr, "leaked goroutines:\n%s\n", s)
			code = 1
		}
		for _, check := range checks {
			if err := check(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// leakedGoroutines waits for goroutines to end and returns the stacks of those that do
// not. The runtime, package testing and the worker pool of gnet keep goroutines of their
// own.
func leakedGoroutines() string {
	var left []string
	Settles(5*time.Second, func() bool {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		left = left[:0]
		for g := range strings.SplitSeq(string(buf), "\n\n") {
			if !strings.Contains(g, ".TestMain(") && !strings.Contains(g, "panjf2000/ants") &&
				!strings.Contains(g, "signal_recv") && !strings.Contains(g, "testing.(*F)") {
				left = append(left, g)
			}
		}
		return len(left) == 0
	})
	return strings.Join(left, "\n\n")
}
