package tcpframe

import (
	"net/netip"
	"testing"
)

// TestPreferredFor: nobody prefers a loop for a proxy, whose address is not the client's.
func TestPreferredFor(t *testing.T) {
	t.Parallel()
	a, own := netip.MustParseAddr("10.1.2.3"), &Loop{}
	o := ListenOptions{Prefer: func(x netip.Addr) *Loop {
		if x != a {
			t.Errorf("asked about %v", x)
		}
		return own
	}}
	if got := o.preferred(a, false); got != own {
		t.Error("the listener is not asked")
	}
	if o.preferred(a, true) != nil || (&ListenOptions{}).preferred(a, false) != nil {
		t.Error("a loop is preferred for a proxy, or by nobody")
	}
}
