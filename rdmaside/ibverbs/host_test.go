//go:build ibverbs

package ibverbs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// Tests that need no RDMA device.

func TestExtents(t *testing.T) {
	mem := make([]byte, 100)
	cut := func(at ...int) (out [][]byte) {
		from := 0
		for _, to := range at {
			out = append(out, mem[from:to:to])
			from = to
		}
		return out
	}
	x, err := newExtents(cut(40, 80, 100))
	if err != nil || x.octets() != 100 {
		t.Fatalf("newExtents: %v, %d octets", err, x.octets())
	}
	for _, tt := range []struct{ from, to, want int }{
		{0, 1, 0}, {0, 40, 0}, {39, 40, 0}, {39, 41, -1}, {40, 80, 1}, {79, 81, -1}, {80, 100, 2}, {99, 100, 2}, {0, 100, -1},
	} {
		if got := x.find(mem[tt.from:tt.to]); got != tt.want {
			t.Errorf("find([%d:%d]) = %d, want %d", tt.from, tt.to, got, tt.want)
		}
	}
	if got := x.find(make([]byte, 10)); got != -1 {
		t.Errorf("find of other memory = %d", got)
	}
	for name, m := range map[string][][]byte{
		"a gap":           {mem[:40], mem[41:81]},
		"unequal lengths": cut(40, 70, 100),
		"a longer one":    cut(40, 100),
		"an empty one":    {mem[:40], nil},
	} {
		if _, err := newExtents(m); err == nil {
			t.Errorf("newExtents accepts %s", name)
		}
	}
	var none extents
	if got := none.find(mem); got != -1 {
		t.Errorf("find without extents = %d", got)
	}
}

// TestAckTimeout checks that a message and its repetitions end within the time that the
// configuration allows, and not in less than a quarter of it.
func TestAckTimeout(t *testing.T) {
	for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second, time.Minute} {
		e := ackTimeout(d)
		took := (retryCount + 1) * time.Duration(4096<<e)
		if took > d || took < d/4 {
			t.Errorf("ackTimeout(%v) = %d, with which a message is repeated for %v", d, e, took)
		}
	}
	if e := ackTimeout(0); e != 0 {
		t.Errorf("ackTimeout(0) = %d", e)
	}
}

func TestMayLock(t *testing.T) {
	const all, none = "CapEff:\t000001ffffffffff\n", "CapEff:\t00000000a80425fb\n"
	for _, tt := range []struct {
		ids, caps string
		want      bool
	}{
		{"         0          0 4294967295\n", all, true},
		{"         0          0 4294967295\n", none, false},
		{"         0     100000      65536\n", all, false}, // root of a container
		{"", all, false},
		{"         0          0 4294967295\n", "", false},
	} {
		dir := t.TempDir()
		write := func(name, text string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("uid_map", tt.ids)
		write("status", "Name:\tx\n"+tt.caps)
		if got := mayLock(dir); got != tt.want {
			t.Errorf("mayLock with ids %q and %q = %v", tt.ids, tt.caps, got)
		}
	}
}

// TestMemlockNeed checks that the limit has to suffice for the arenas of all domains, and once more for
// Calls.
func TestMemlockNeed(t *testing.T) {
	testkit.Eventually(t, "the domains of earlier tests are gone", func() bool { return arenas.Load() == 0 })
	x := extents{base: 1000, end: 1100, size: 100}
	for i := range uint64(3) {
		x.addArena()
		if got := x.memlockNeed(); got != (i+2)*100 {
			t.Errorf("%d domains with 100 octets need %d", i+1, got)
		}
	}
	for i := range uint64(3) {
		x.removeArena()
		if got := x.memlockNeed(); got != (3-i)*100 {
			t.Errorf("%d domains with 100 octets need %d", 2-i, got)
		}
	}
}

func TestMemlockError(t *testing.T) {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(rlimitMemlock, &lim); err != nil {
		t.Fatal(err)
	}
	if err := checkMemlock("dev", &Quirks{MemlockOfRoot: true}, lim.Cur); err != nil {
		t.Errorf("a limit of what is needed: %v", err)
	}
	err := memlockError("dev", 1000, 2000)
	if !errors.Is(err, fabric.ErrLimit) || !strings.Contains(err.Error(), "LimitMEMLOCK=2000") {
		t.Error(err)
	}
}

func TestOpenMissing(t *testing.T) {
	err := open("libibverbs-that-is-not-there.so.1", "librdmacm.so.1")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "install rdma-core") || strings.Contains(err.Error(), "\n") {
		t.Errorf("open: %v", err)
	}
	// A library without the functions: libc stands for a release of rdma-core that lacks one.
	err = open("libc.so.6", "libc.so.6")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "has no function") {
		t.Errorf("open of libc: %v", err)
	}
}

func TestCMError(t *testing.T) {
	if err := load(); err != nil {
		t.Skip(err)
	}
	for _, tt := range []struct {
		err     cmError
		reject  bool
		contain string
	}{
		{cmError{"resolve address 10.0.0.1", addrError, -int(syscall.ENODEV)}, false, "resolve address 10.0.0.1: addr_error: no such device"},
		{cmError{"resolve route to 10.0.0.1", routeError, -int(syscall.ETIMEDOUT)}, false, "resolve route to 10.0.0.1: route_error: connection timed out"},
		{cmError{"connect to 10.0.0.1:20049", rejected, cmInvalidService}, false, "nothing listens"},
		{cmError{"connect to 10.0.0.1:20049", rejected, cmConsumer}, true, "by the peer's program"},
		{cmError{"connect to 10.0.0.1:20049", rejected, -int(syscall.ECONNREFUSED)}, true, "connection refused"},
		{cmError{"connect to 10.0.0.1:20049", unreachable, -int(syscall.ETIMEDOUT)}, false, "unreachable"},
	} {
		if got := tt.err.Error(); errors.Is(&tt.err, fabric.ErrRejected) != tt.reject || !strings.Contains(got, tt.contain) {
			t.Errorf("%q, rejected %v; want %q, %v", got, errors.Is(&tt.err, fabric.ErrRejected), tt.contain, tt.reject)
		}
	}
}

func TestRetired(t *testing.T) {
	var r retired
	for i := range uint32(5000) {
		if !r.fresh(i + 1) {
			t.Fatalf("handle %d is not fresh", i+1)
		}
		if r.fresh(max(i, 1)) {
			t.Fatalf("handle %d is fresh again after one other", max(i, 1))
		}
	}
	if !r.fresh(1) || len(r.given) > len(r.order) {
		t.Errorf("a handle is not fresh after 5000 others; %d are remembered", len(r.given))
	}
}
