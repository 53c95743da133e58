package iwarptest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails when goroutines of this package outlive the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && !goroutinesEnd() {
		code = 1
	}
	os.Exit(code)
}

// goroutinesEnd waits until no goroutine of this package runs. It reports false, and
// prints the stacks, when some run on.
func goroutinesEnd() bool {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		b := make([]byte, 1<<20)
		b = b[:runtime.Stack(b, true)]
		leaked := false
		for _, g := range strings.Split(string(b), "\n\n") {
			leaked = leaked || strings.Contains(g, "/iwarptest.") && !strings.Contains(g, "TestMain")
		}
		switch {
		case !leaked:
			return true
		case time.Now().After(deadline):
			fmt.Fprintf(os.Stderr, "goroutines leaked:\n%s\n", b)
			return false
		}
	}
}
