package rpcbind

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

func TestUaddr(t *testing.T) {
	for _, tt := range []struct{ addr, want string }{
		{"192.0.2.1:111", "192.0.2.1.0.111"},
		{"0.0.0.0:0", "0.0.0.0.0.0"},
		{"255.255.255.255:65535", "255.255.255.255.255.255"},
		{"10.0.0.1:20049", "10.0.0.1.78.81"}, // notes of RFC 8166 Section 5: 20049 is NFS over RDMA
		{"[::]:2049", "::.8.1"},
		{"[2001:db8::1]:256", "2001:db8::1.1.0"},
		{"[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff.0.255"},
		{"[::ffff:255.255.255.255]:65535", "::ffff:255.255.255.255.255.255"},
	} {
		a := netip.MustParseAddrPort(tt.addr)
		u := uaddr(a)
		if string(u) != tt.want || len(u) > maxUaddr {
			t.Errorf("uaddr(%s) = %s, want %s", tt.addr, u, tt.want)
		}
		if got, ok := parseUaddr(u); !ok || got != a {
			t.Errorf("parseUaddr(%s) = %v, %v", u, got, ok)
		}
		b := taddr(a)
		if got, ok := parseTaddr(b); !ok || got != a {
			t.Errorf("parseTaddr(%x) = %v, %v, want %v", b, got, ok, a)
		}
		for n := range b {
			if got, ok := parseTaddr(b[:n:n]); ok {
				t.Errorf("parseTaddr of %d octets = %v", n, got)
			}
		}
	}
	if u := uaddr(netip.MustParseAddrPort("[fe80::1%eth0]:1")); string(u) != "fe80::1.0.1" {
		t.Errorf("with a zone: %s", u)
	}
	for _, s := range []string{
		"", ".", "..", "1.2", "1.2.3.4.5", "192.0.2.1.256.1", "192.0.2.1.1.256", "192.0.2.1.-1.1", "192.0.2.1.+1.1", "192.0.2.1..1",
		"192.0.2.1.1.", "192.0.2.1.0x1.1", "192.0.2.300.1.1", "localhost.0.111", "::1", "fe80::1%eth0.0.111", "192.0.2.1.8.1\x00",
		" 192.0.2.1.8.1", "/run/rpcbind.sock", "1:2:3:4:5:6:7:8:9.0.1", "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255.255.00000255",
	} {
		if a, ok := parseUaddr([]byte(s)); ok {
			t.Errorf("parseUaddr(%q) = %v", s, a)
		}
	}
	unix := binary.NativeEndian.AppendUint16(nil, 1) // AF_UNIX
	if a, ok := parseTaddr(append(unix, make([]byte, 108)...)); ok {
		t.Errorf("parseTaddr of AF_UNIX = %v", a)
	}
}

func TestNetid(t *testing.T) {
	for _, tt := range []struct {
		q    question
		want string
	}{
		{overTCP("192.0.2.1"), "tcp"},
		{overTCP("2001:db8::1"), "tcp6"},
		{overUDP("192.0.2.1"), "udp"},
		{overUDP("::1"), "udp6"},
	} {
		if got := tt.q.netid(); got.String() != tt.want {
			t.Errorf("%+v: %s, want %s", tt.q, got, tt.want)
		}
	}
	for n := range netids {
		if got, ok := netidByName([]byte(n.String())); !ok || got != n {
			t.Errorf("%s: %v, %v", n, got, ok)
		}
	}
	for _, s := range []string{"", "TCP", "tcp\x00", "tcp66", "local"} {
		if n, ok := netidByName([]byte(s)); ok {
			t.Errorf("%q is %s", s, n)
		}
	}
}
