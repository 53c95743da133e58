package crowd

import (
	"net/netip"
	"testing"
)

// TestCounts: a host that has no connection any more takes no memory.
func TestCounts(t *testing.T) {
	var c Counts
	a, b := HostOf(netip.MustParseAddr("192.0.2.1")), HostOf(netip.MustParseAddr("2001:db8::1"))
	for _, h := range []Host{a, b, a} {
		c.Add(h)
	}
	if c.All() != 3 || c.Of(a) != 2 || c.Of(b) != 1 || c.Hosts() != 2 {
		t.Errorf("after three connections of two hosts: %+v", c)
	}
	c.Remove(a)
	c.Remove(b)
	if c.All() != 1 || c.Of(a) != 1 || c.Of(b) != 0 || c.Hosts() != 1 {
		t.Errorf("after two of them have ended: %+v", c)
	}
}
