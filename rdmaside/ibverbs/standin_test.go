//go:build ibverbs

package ibverbs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// standIn is the page that testdata/standin.c shares with the tests.
var standIn *standInPage

type standInPage struct {
	fault, value   atomic.Uint32
	live           atomic.Int32
	tos, listenTOS atomic.Uint32
	command        atomic.Uint32
	object         atomic.Uint64
	args           [6]atomic.Int64
	windows        atomic.Uint32
}

// Commands of testdata/standin.c, in its order.
const (
	_             = iota
	standInAsync  // event args[0] about the object, on device args[1]
	standInWork   // a completion on a CQ: number, status, opcode, octets, flags, key
	standInEvent  // an event of an id: kind, status, octets of private data, two counts of Reads, whether it is about a new id
	standInRemove // device args[0]
	standInAdd    // device args[0]
)

var standInMu sync.Mutex // held during a command

// tellStandIn has the stand-in carry out a command.
func tellStandIn(t testing.TB, command uint32, object uint64, args ...int64) {
	t.Helper()
	standInMu.Lock()
	defer standInMu.Unlock()
	standIn.object.Store(object)
	for i := range standIn.args {
		standIn.args[i].Store(0)
	}
	for i, a := range args {
		standIn.args[i].Store(a)
	}
	standIn.command.Store(command)
	if err := setTOS(0, 0); err != nil {
		t.Error("command of the stand-in:", err)
	}
}

// Memory windows of the stand-in, in its order.
const (
	goodWindows = iota
	looseWindows
	noWindows
)

// Pretend gives the stand-in a driver until the end of the test: rxe, whose windows have the faults of
// rxe's, or one for which windows are as the verbs promise.
func Pretend(t testing.TB, driver string) {
	t.Helper()
	class := t.TempDir()
	kind := uint32(looseWindows)
	if driver != "rxe" {
		kind = goodWindows
		to := filepath.Join(class, "drivers", driver)
		at := filepath.Join(class, "standin0", "device")
		for _, dir := range []string{to, at} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(to, filepath.Join(at, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	old, oldKind := sysClass, standIn.windows.Swap(kind)
	sysClass = class
	t.Cleanup(func() {
		sysClass = old
		standIn.windows.Store(oldKind)
	})
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
	standIn = (*standInPage)(unsafe.Pointer(unsafe.SliceData(b)))
	if err := os.Setenv("RDMABRIDGE_STANDIN", page); err != nil {
		return err
	}
	// The stand-in's events and flushes do not come late.
	eventTimeout, flushTimeout = 2*time.Millisecond, 20*time.Millisecond
	relistenEvery, portPoll = 5*time.Millisecond, 5*time.Millisecond
	library.once.Do(func() { library.err = open(so, so) })
	return library.err
}
