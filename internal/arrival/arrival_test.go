package arrival

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// Control messages of Linux. Malformed ones give no address.
func TestArrival(t *testing.T) {
	four := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: 3, Spec_dst: [4]byte{192, 0, 2, 1}, Addr: [4]byte{192, 0, 2, 1}})
	cast := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: 3, Spec_dst: [4]byte{192, 0, 2, 1}, Addr: [4]byte{192, 0, 2, 255}})
	six := func(a string) []byte {
		return unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: 3, Addr: netip.MustParseAddr(a).As16()})
	}
	for _, tt := range []struct {
		name string
		oob  []byte
		want Arrival
	}{
		{"IPv4", four, Arrival{Local: netip.MustParseAddr("192.0.2.1")}},
		{"IPv4 on both", append(four[:len(four):len(four)], six("::ffff:192.0.2.1")...), Arrival{Local: netip.MustParseAddr("192.0.2.1")}},
		{"mapped alone", six("::ffff:192.0.2.1"), Arrival{Local: netip.MustParseAddr("192.0.2.1"), link: 3}},
		{"broadcast", cast, Arrival{Local: netip.MustParseAddr("192.0.2.1"), Group: true}},
		{"IPv6", six("2001:db8::1"), Arrival{Local: netip.MustParseAddr("2001:db8::1"), link: 3}},
		{"link-local", six("fe80::1"), Arrival{Local: netip.MustParseAddr("fe80::1"), link: 3, linkLocal: true}},
		{"multicast", six("ff02::202"), Arrival{Local: netip.MustParseAddr("ff02::202"), link: 3, Group: true}},
		{"none", nil, Arrival{}},
		{"cut", four[:len(four)-8], Arrival{}},
	} {
		if got := Parse(tt.oob); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
