package rpcbind

import (
	"net"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestAsk: Ask and the Server understand each other, over both families.
func TestAsk(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			s, _ := start(t, net.JoinHostPort(host, "0"))
			dial(t, s, "tcp", host) // skips where there is no IPv6
			at := netip.AddrPortFrom(netip.MustParseAddr(host), s.Addr().Port()).String()
			if port, err := Ask(t.Context(), at, 100005, 3); err != nil || port != 2049 {
				t.Errorf("port %d, %v; want 2049", port, err)
			}
			if port, err := Ask(t.Context(), at, 100099, 1); err != nil || port != 0 {
				t.Errorf("a program that is not registered: port %d, %v", port, err)
			}
		})
	}
	if port, err := Ask(t.Context(), testkit.DeadAddr(t), 100005, 3); err == nil {
		t.Errorf("nobody answers port %d", port)
	}
}

// TestAskMalformed: answers that are none are errors.
func TestAskMalformed(t *testing.T) {
	for _, tc := range []struct {
		words   []uint32
		getAddr bool
	}{
		{nil, false},
		{[]uint32{65536}, false},        // too large
		{[]uint32{8}, true},             // shorter than it says
		{[]uint32{4, 0x30303030}, true}, // no universal address
	} {
		m := xdr.AppendWords(nil, tc.words...)
		if port, err := askedPort(m, xdr.NewCursor(m, 0), tc.getAddr); err == nil {
			t.Errorf("%x: port %d", tc.words, port)
		}
	}
}
