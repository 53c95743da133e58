package proxy

import (
	"net/netip"
	"testing"
)

func TestHostIsAnAddress(t *testing.T) {
	hosts := newHosts()
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
		a, b := hosts.join(netip.MustParseAddr(x.a)), hosts.join(netip.MustParseAddr(x.b))
		if same := a == b; same != x.same {
			t.Errorf("%s and %s are one host: %v, want %v", x.a, x.b, same, x.same)
		}
		hosts.leave(a)
		hosts.leave(b)
	}
	if n := len(hosts.of); n != 0 {
		t.Errorf("%d hosts are left without connections", n)
	}
}
