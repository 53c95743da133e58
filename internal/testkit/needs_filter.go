package testkit

import (
	"os"
	"testing"
)

// NeedsFilter skips the test without root: the filters by which the packets of a TCP socket get lost are refused to other users.
func NeedsFilter(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may lose the packets of a socket")
	}
}
