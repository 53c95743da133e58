package admit

import (
	"net/netip"
	"testing"
	"unsafe"
)

func TestHostIsAnAddress(t *testing.T) {
	hosts := NewHosts()
	for _, x := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::2", true},
	} {
		a, b := hosts.Join(netip.MustParseAddr(x.a)), hosts.Join(netip.MustParseAddr(x.b))
		if same := a == b; same != x.same {
			t.Errorf("%s and %s are one host: %v, want %v", x.a, x.b, same, x.same)
		}
		hosts.Leave(a)
		hosts.Leave(b)
	}
	if n := len(hosts.of); n != 0 {
		t.Errorf("%d hosts are left without connections", n)
	}
}

// TestHostSizes: these structs fill a size class of Go's heap, so that a field more costs each host a multiple of its
// length.
func TestHostSizes(t *testing.T) {
	if n := unsafe.Sizeof(Host{}); n > 64 {
		t.Errorf("a host has %d octets, more than 64", n)
	}
	if n := unsafe.Sizeof(hostShare{}); n > 128 {
		t.Errorf("a hostShare has %d octets, more than 128", n)
	}
}
