package tcpframe

import (
	"flag"
	"fmt"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
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
	testkit.Main(m, func() error {
		if n := lent.Load(); n != 0 {
			return fmt.Errorf("%d Buffers were not released", n)
		}
		return nil
	})
}
