package proxy_test

import (
	"flag"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestMain lets twelve tests run at a time, where the default is as many as there are
// processors: tests that are parallel mostly wait. The others use every processor, or measure
// shares, goroutines, allocations or times that a crowd would disturb. TestMain fails on
// goroutines that outlive the tests.
// atOnce runs f as the subtest name of t, beside the others that were given the same wg. Unlike a
// subtest that calls t.Parallel it does not wait for a place among the parallel tests: it is for
// cases that spend their time waiting for a clock. The caller waits for wg.
func atOnce(t *testing.T, wg *sync.WaitGroup, name string, f func(t *testing.T)) {
	wg.Go(func() { t.Run(name, f) })
}

func TestMain(m *testing.M) {
	flag.Parse()
	n := runtime.GOMAXPROCS(0)
	if p := flag.Lookup("test.parallel"); n < 12 && p.Value.String() == strconv.Itoa(n) {
		_ = p.Value.Set("12")
	}
	testkit.Main(m)
}
