package iwarptest

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestMain fails on goroutines that outlive the tests.
func TestMain(m *testing.M) { testkit.Main(m) }
