//go:build ibverbs

package ibverbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"
)

// standIn is the page that testdata/standin.c shares with the tests.
var standIn *struct {
	fault, value atomic.Uint32
	live         atomic.Int32
}

// TestMain puts testdata/standin.c in the place of rdma-core, unless the tests are to run on a device.
func TestMain(m *testing.M) {
	if os.Getenv("RDMABRIDGE_VERBS") != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "standin")
	if err == nil {
		err = useStandIn(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand-in for rdma-core:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// useStandIn compiles the stand-in into dir and opens it.
func useStandIn(dir string) error {
	so, page := filepath.Join(dir, "standin.so"), filepath.Join(dir, "page")
	out, err := exec.Command("cc", "-O1", "-g", "-Wall", "-Werror", "-shared", "-fPIC", "-o", so, "testdata/standin.c", "-lpthread").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	f, err := os.Create(page)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	standIn = (*struct {
		fault, value atomic.Uint32
		live         atomic.Int32
	})(unsafe.Pointer(unsafe.SliceData(b)))
	if err := os.Setenv("RDMABRIDGE_STANDIN", page); err != nil {
		return err
	}
	library.once.Do(func() { library.err = open(so, so) })
	return library.err
}
