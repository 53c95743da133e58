package proxy_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestMain lets twelve tests run at a time, where the default is as many as there are
// processors: tests that are parallel mostly wait. The others use every processor, or measure
// shares, goroutines, allocations or times that a crowd would disturb. TestMain fails on
// goroutines that outlive the tests.
func TestMain(m *testing.M) {
	flag.Parse()
	n := runtime.GOMAXPROCS(0)
	if p := flag.Lookup("test.parallel"); n < 12 && p.Value.String() == strconv.Itoa(n) {
		_ = p.Value.Set("12")
	}
	testkit.Main(m)
}
