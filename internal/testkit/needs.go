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
