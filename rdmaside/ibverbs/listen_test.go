//go:build ibverbs

package ibverbs

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// TestStartingOfHosts: the connections that an address may have starting are those of an IPv4 address, or of an IPv6
// /64, because a peer that has one address of a /64 can have them all.
func TestStartingOfHosts(t *testing.T) {
	onStandInHost(t, "127.0.0.1/8")
	leaks := watchLeaks()
	p, err := New(Options{DialTimeout: patience, AcceptTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	fl, err := p.Listen("127.0.0.1:0", fabric.ListenOptions{MaxConnections: -1, MaxStarting: 4, MaxStartingPerAddr: 2}, func(fabric.Incoming) {})
	if err != nil {
		t.Fatal(err)
	}
	l := fl.(*listener)
	var in []netip.Addr
	for _, tt := range []struct{ peer, want string }{
		{"2001:db8::1", ""},
		{"2001:db8::2", ""},
		{"2001:db8::3", refusedStartingAddr},
		{"2001:db8:0:1::1", ""},
		{"192.0.2.1", ""},
		{"192.0.2.2", refusedStarting},
	} {
		a := netip.MustParseAddr(tt.peer)
		got, _ := l.admit(a)
		if got != tt.want {
			t.Errorf("%s: %q, want %q", a, got, tt.want)
		}
		if got == "" {
			in = append(in, a)
		}
	}
	for _, a := range in {
		l.started(a)
		l.ended()
	}
	if got, err := l.admit(netip.MustParseAddr("2001:db8::3")); got != "" {
		t.Errorf("after the others have started: %q, %v", got, err)
	}
	l.started(netip.MustParseAddr("2001:db8::3"))
	l.ended()
	l.Close()
	leaks(t)
}
