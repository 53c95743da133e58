package regmem

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// TestDontDump: core dumps have no messages.
func TestDontDump(t *testing.T) {
	a, err := New(Options{Budget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	first := fmt.Sprintf("%x-", uintptr(unsafe.Pointer(&a.mem[0])))
	_, mapping, ok := strings.Cut("\n"+string(b), "\n"+first)
	_, flags, _ := strings.Cut(mapping, "\nVmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	if !ok || !strings.Contains(flags+" ", " dd ") {
		t.Errorf("the arena at %s has the flags %q, want dd among them", first, flags)
	}
}
