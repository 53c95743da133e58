//go:build ibverbs

package ibverbs_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/ibverbs"
)

// TestFabric puts the provider through the suite that every provider passes, over the device whose
// address is in RDMABRIDGE_VERBS; RDMABRIDGE_VERBS_DRIVER is its driver, rxe or siw. TestLabVerbs of
// internal/lab runs it in the guest of deploy/lab.
func TestFabric(t *testing.T) {
	runSuite(t, verbsAddress(t), ibverbs.ExposeAuto, map[string][]fabrictest.Divergence{
		"rxe": {fabrictest.SharedHandles, fabrictest.PaddedPrivateData},
		"siw": {fabrictest.SharedHandles, fabrictest.AddressOffsets, fabrictest.WeakRights},
	}[os.Getenv("RDMABRIDGE_VERBS_DRIVER")])
}

// TestFabricWindows is TestFabric with memory windows, which rxe has and siw has not.
func TestFabricWindows(t *testing.T) {
	addr := verbsAddress(t)
	if os.Getenv("RDMABRIDGE_VERBS_DRIVER") == "rxe" {
		runSuite(t, addr, ibverbs.ExposeWindows, []fabrictest.Divergence{fabrictest.ForeignInvalidation, fabrictest.PaddedPrivateData})
		return
	}
	l, err := newProvider(t, ibverbs.ExposeAuto, newArena(t)).Listen(addr+":0", fabrictest.NoLimits(), func(fabric.Incoming) {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	on := fabrictest.NewLoop()
	defer on.Stop()
	_, err = newProvider(t, ibverbs.ExposeWindows, newArena(t)).Dial(t.Context(), on, l.Addr().String(), fabric.ConnOptions{}, nil)
	if err == nil || !strings.Contains(err.Error(), "it has no type 2 memory windows: set ibverbs.exposure") {
		t.Errorf("Dial on a device without windows: %v", err)
	}
}

// verbsAddress returns the address of the device to test on.
func verbsAddress(t *testing.T) string {
	t.Helper()
	addr := os.Getenv("RDMABRIDGE_VERBS")
	if addr == "" {
		t.Skip("needs an RDMA device: set RDMABRIDGE_VERBS to its address")
	}
	return addr
}

// runSuite runs the suite at an address.
func runSuite(t *testing.T, addr string, e ibverbs.Exposure, diverges []fabrictest.Divergence) {
	fabrictest.Run(t, func(t *testing.T) *fabrictest.Fixture {
		dial, accept := fabrictest.NewLoop(), fabrictest.NewLoop()
		t.Cleanup(dial.Stop)
		t.Cleanup(accept.Stop)
		mem := newArena(t)
		return &fabrictest.Fixture{
			Dialer: newProvider(t, e, mem), Acceptor: newProvider(t, e, mem), Stranger: newProvider(t, e, mem),
			DialLoop: dial, AcceptLoop: accept, Listen: addr + ":0", Diverges: diverges, Memory: mem.alloc, Passing: passing,
		}
	})
}

// passing reports whether an error has to do with the guest's kernel at this moment. To listen at port 0, it
// takes a port at random, which a TCP socket may have with siw; and once in some thousand times siw
// cannot make a queue pair "now".
func passing(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EAGAIN)
}

func newProvider(t testing.TB, e ibverbs.Exposure, mem *arena) fabric.Provider {
	t.Helper()
	p, err := ibverbs.New(ibverbs.Options{
		DialTimeout: 15 * time.Second, AcceptTimeout: 10 * time.Second, Exposure: e, Memory: mem.extents,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// An arena has memory that providers register by extents, as that of messages.
type arena struct {
	extents [][]byte

	mu   sync.Mutex // guards free; a leaf
	free []byte
}

const extentSize = 8 << 20

func newArena(t testing.TB) *arena {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, 8*extentSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	a := &arena{free: b}
	for at := 0; at < len(b); at += extentSize {
		a.extents = append(a.extents, b[at:][:extentSize:extentSize])
	}
	return a
}

// alloc returns memory that has not been used, in one extent.
func (a *arena) alloc(n int) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rest := len(a.free) % extentSize; rest != 0 && n > rest {
		a.free = a.free[rest:]
	}
	b := a.free[:n:n]
	a.free = a.free[n:]
	return b
}
