//go:build ibverbs

package ibverbs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// TestAdmit: Admit is asked about each connection that Allow lets in and no other, before the limits; a connection
// that it refuses is rejected with its reason, and takes no place.
func TestAdmit(t *testing.T) {
	onStandInHost(t, "127.0.0.1/8", "127.0.0.2/8")
	leaks := watchLeaks()
	p, err := New(Options{DialTimeout: patience, AcceptTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	allowed, refuse := true, ""
	var asked []netip.Addr
	events := make(chan string, 8)
	l, err := p.Listen("127.0.0.1:0", fabric.ListenOptions{
		MaxConnections: 2, MaxStarting: 2, MaxStartingPerAddr: 2, // fewer than Admit refuses
		Allow: func(netip.Addr) bool { return allowed },
		Admit: func(a netip.Addr) (string, error) {
			asked = append(asked, a)
			if refuse == "" {
				return "", nil
			}
			return refuse, errors.New("the tenant has enough")
		},
		Refused: func(peer netip.AddrPort, reason string, err error) { events <- reason + ": " + err.Error() },
	}, func(in fabric.Incoming) { events <- "passed on"; _ = in.Reject(nil) })
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		allowed     bool
		refuse      string
		want        string
		timesBefore int // Admit was asked, this connection included
	}{
		{true, "tenant_connections", "tenant_connections: the tenant has enough", 1},
		{true, "tenant_connections", "tenant_connections: the tenant has enough", 2}, // the first has no place
		{false, "tenant_connections", "address: ", 2},
		{true, "", "passed on", 3},
		{true, "tenant_connection_rate", "tenant_connection_rate: the tenant has enough", 4},
		{true, "", "passed on", 5},
	} {
		allowed, refuse = tt.allowed, tt.refuse
		if _, _, err := dialSelected(t, Options{}, l.Addr().String()); err == nil || !strings.Contains(err.Error(), "rejected") {
			t.Errorf("connection %d: Dial: %v", i, err)
		}
		if got := <-events; !strings.HasPrefix(got, tt.want) {
			t.Errorf("connection %d: %q, want %q", i, got, tt.want)
		}
		if len(asked) != tt.timesBefore {
			t.Errorf("connection %d: Admit was asked %d times, want %d", i, len(asked), tt.timesBefore)
		}
	}
	for _, a := range asked {
		if a != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("Admit was asked about %v", a)
		}
	}
	l.Close()
	leaks(t)
}
