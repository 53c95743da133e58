package tcpframe

import (
	"net/netip"
	"testing"
)

// TestPreferred: a client gets the loop that its listener prefers, until that one has many more sockets than another.
func TestPreferred(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		conns     [3]int32
		preferred int // -1: none
		want      int
	}{
		{"nobody prefers one", [3]int32{5, 2, 3}, -1, 1},
		{"some more", [3]int32{6, 2, 3}, 0, 0},
		{"many more", [3]int32{7, 2, 3}, 0, 1},
		{"a quarter more of many", [3]int32{1254, 1000, 1001}, 0, 0},
		{"more than a quarter", [3]int32{1255, 1000, 1001}, 0, 1},
		{"the least loaded one", [3]int32{9, 9, 1}, 2, 2},
	} {
		e := &Engine{loops: []*Loop{{}, {}, {}}}
		for i, l := range e.loops {
			l.conns.Store(tt.conns[i])
		}
		var preferred *Loop
		if tt.preferred >= 0 {
			preferred = e.loops[tt.preferred]
		}
		if got := e.place(preferred); got != e.loops[tt.want] {
			t.Errorf("%s: not loop %d", tt.name, tt.want)
		}
	}
}

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
