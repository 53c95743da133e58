package fnv

import (
	"hash/fnv"
	"net/netip"
	"testing"
)

// TestAdd: Add is FNV-1a, also in several steps.
func TestAdd(t *testing.T) {
	for _, s := range []string{"", "a", "storage", "a longer name of an upstream"} {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s))
		if got := Add(Basis, []byte(s)); got != h.Sum64() {
			t.Errorf("%q: %#x, want %#x", s, got, h.Sum64())
		}
		if n := len(s) / 2; Add(Add(Basis, []byte(s[:n])), []byte(s[n:])) != h.Sum64() {
			t.Errorf("%q in two steps has another hash", s)
		}
	}
}

// TestAddress: the value of the first release stays, because a client must find its seat after an upgrade, and an
// IPv4 address has it in the words of IPv6, too.
func TestAddress(t *testing.T) {
	a := netip.MustParseAddr("10.1.2.3")
	if got := Address(a); got != 0x97112457 {
		t.Errorf("10.1.2.3: %#x", got)
	}
	if got := Address(netip.AddrFrom16(a.As16())); got != Address(a) {
		t.Errorf("10.1.2.3 in the words of IPv6: %#x", got)
	}
}
