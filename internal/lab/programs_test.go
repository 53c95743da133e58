package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// programs is where the tests build programs, each once for all of them. TestMain makes it and removes it.
var programs string

var (
	// Without cgo, because it runs in guests, too, and most have other libraries than this host.
	buildBridge = sync.OnceValues(func() (string, error) {
		return build("rdmabridge", "CGO_ENABLED=0", "../../cmd/rdmabridge", "build")
	})
	buildBench = sync.OnceValues(func() (string, error) {
		return build("rdmabridge-bench", "CGO_ENABLED=0", "../../cmd/rdmabridge-bench", "build")
	})
	buildVerbsBridge = sync.OnceValues(func() (string, error) {
		return build("rdmabridge-ibverbs", "CGO_ENABLED=1", "../../cmd/rdmabridge", "build", "-tags", "ibverbs")
	})
	buildVerbsTests = sync.OnceValues(func() (string, error) {
		return build("ibverbs.test", "CGO_ENABLED=1", "../../rdmaside/ibverbs", "test", "-c", "-tags", "ibverbs")
	})
)

// build has go make a program of a package.
func build(name, cgo, pkg string, args ...string) (file string, err error) {
	file = filepath.Join(programs, name)
	cmd := exec.Command("go", slices.Concat(args, []string{"-o", file, pkg})...)
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return file, nil
}

// bridgeBinary returns the path of the bridge's program. RDMABRIDGE_BINARY is the absolute path of a static one that is
// there already.
func bridgeBinary(t *testing.T) string {
	t.Helper()
	if file := os.Getenv("RDMABRIDGE_BINARY"); file != "" {
		return file
	}
	return built(t, buildBridge)
}

// benchBinary returns the path of the program of bench. RDMABRIDGE_BENCH is the absolute path of one that is there
// already.
func benchBinary(t *testing.T) string {
	t.Helper()
	if file := os.Getenv("RDMABRIDGE_BENCH"); file != "" {
		return file
	}
	return built(t, buildBench)
}

// built returns the program that build has built, or builds now.
func built(t *testing.T, build func() (string, error)) string {
	t.Helper()
	file, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return file
}
