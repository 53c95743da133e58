package tcpframe

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// parallel is how many parallel tests run at once. Most of them wait for the timers of TCP
// and use no CPU.
const parallel = "8"

// TestMain fails on goroutines that outlive the tests, and on Buffers that were not
// released.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := m.Run()
	if code == 0 {
		if s := leaked(); s != "" {
			fmt.Fprintf(os.Stderr, "leaked goroutines:\n%s\n", s)
			code = 1
		}
		if n := lent.Load(); n != 0 {
			fmt.Fprintf(os.Stderr, "%d Buffers were not released\n", n)
			code = 1
		}
	}
	os.Exit(code)
}

// leaked waits for goroutines to end and returns the stacks of those that do not. It ignores
// the idle workers that gnet's worker pool keeps.
func leaked() string {
	var left []string
	for range 100 {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		left = left[:0]
		for g := range strings.SplitSeq(string(buf), "\n\n") {
			if !strings.Contains(g, "panjf2000/ants") && !strings.Contains(g, "tcpframe.TestMain") &&
				!strings.Contains(g, "signal_recv") && !strings.Contains(g, "testing.(*F)") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
		time.Sleep(20 * time.Millisecond)
	}
	return strings.Join(left, "\n\n")
}
