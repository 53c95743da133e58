package testkit

import (
	"os"
	"os/exec"
	"testing"
)

// Needs skips the test where one of tools is not installed. make install has them all.
func Needs(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" || os.Getenv("RDMABRIDGE_LAB") == "1" {
				t.Fatalf("%v: make install installs it", err)
			}
			t.Skipf("%v: make install installs it", err)
		}
	}
}

// NeedsFilter skips the test without root: the filters by which the packets of a TCP socket get lost are refused to other
// users.
func NeedsFilter(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may lose the packets of a socket")
	}
}
