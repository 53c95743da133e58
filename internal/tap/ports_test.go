package tap

import (
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// TestForeign compares the table of ports with what the installed tshark knows.
func TestForeign(t *testing.T) {
	for i := 1; i < len(foreign); i++ {
		if foreign[i][0] > foreign[i][1] || foreign[i][0] <= foreign[i-1][1] {
			t.Fatalf("the table is not in order at %v", foreign[i])
		}
	}
	for _, port := range []uint16{111, 2049, 20049, firstSubstitute} {
		if isForeign(port) {
			t.Errorf("port %d is foreign", port)
		}
	}
	out, err := exec.Command("tshark", "-G", "decodes").Output()
	if err != nil {
		t.Skipf("%v: make install installs tshark", err)
	}
	for l := range strings.Lines(string(out)) {
		v := strings.Split(strings.TrimSpace(l), "\t")
		if len(v) != 3 || v[0] != "tcp.port" || v[2] == "rpc" {
			continue
		}
		if port, _ := strconv.Atoi(v[1]); !isForeign(uint16(port)) {
			t.Errorf("tshark decodes %s from port %d, which the table does not have", v[2], port)
		}
	}
}

// TestEnds checks which ends connections have in a capture.
func TestEnds(t *testing.T) {
	w := &writer{used: map[pair]bool{}}
	ap := netip.MustParseAddrPort
	for i, tc := range []struct {
		leg         observe.TapLeg
		local, peer netip.AddrPort
		want        string
	}{
		{observe.TapClients, ap("192.0.2.1:2049"), ap("192.0.2.7:777"), "192.0.2.1:2049 192.0.2.7:777"},
		{observe.TapClients, ap("192.0.2.1:2049"), ap("192.0.2.7:524"), "192.0.2.1:2049 192.0.2.7:61000"},
		{observe.TapClients, ap("192.0.2.1:2049"), ap("192.0.2.7:873"), "192.0.2.1:2049 192.0.2.7:61001"},
		{observe.TapClients, ap("192.0.2.1:80"), ap("192.0.2.7:778"), "192.0.2.1:2049 192.0.2.7:778"},
		{observe.TapClients, ap("[::ffff:192.0.2.1]:2049"), ap("[::ffff:192.0.2.7]:777"), "192.0.2.1:2049 192.0.2.7:61002"},
		{observe.TapUpstreams, ap("192.0.2.1:777"), ap("192.0.2.9:20049"), "192.0.2.1:777 192.0.2.9:20049"},
		{observe.TapUpstreams, netip.AddrPort{}, ap("[2001:db8::9%eth0]:20049"), "[::]:61000 [2001:db8::9]:20049"},
		{observe.TapUpstreams, netip.AddrPort{}, netip.AddrPort{}, "0.0.0.0:61000 0.0.0.0:2049"},
	} {
		c := &observe.TapConn{ID: uint64(i), Leg: tc.leg, Local: tc.local, Peer: tc.peer}
		p := w.ends(c)
		if w.used[p] {
			t.Errorf("%v is used twice", p)
		}
		w.used[p] = true
		if got := strings.Replace(p.local.String()+" "+p.peer.String(), "[::ffff:0.0.0.0]", "[::]", 1); got != tc.want {
			t.Errorf("%v %v: %s, want %s", tc.local, tc.peer, got, tc.want)
		}
	}
}
