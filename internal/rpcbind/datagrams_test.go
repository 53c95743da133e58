package rpcbind

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/arrival"
	"github.com/rdmabridge/rdmabridge/internal/testkit"

	"golang.org/x/sys/unix"
)

// newTestDatagrams returns datagrams without a socket.
func newTestDatagrams(s *Server) *datagrams {
	return &datagrams{s: s}
}

// Any question, forged twenty thousand times in a second, sends the victim at most the
// octets of the questions, Slack for each, and the octets of ExcessRate.
func TestNoAmplifier(t *testing.T) {
	s := newTestServer(testServices())
	a := arrival.Arrival{Local: netip.MustParseAddr("192.0.2.1")}
	from := netip.MustParseAddrPort("203.0.113.1:53")
	for _, tt := range replies {
		call := testkit.Unhex(t, tt.call)
		d := newTestDatagrams(s)
		out, answered := 0, 0
		for i := range 20000 {
			now := time.Unix(1e9, int64(i)*5e4)
			reply, _ := d.question(call, 0, a, from, now)
			out += len(reply)
			if reply != nil {
				answered++
			}
		}
		if most := answered*(len(call)+arrival.Slack) + arrival.ExcessBurst + arrival.ExcessRate; out > most {
			t.Errorf("%s: %d octets out for %d answered questions of %d, want at most %d", tt.name, out, answered, len(call), most)
		}
		if answered > arrival.AnswerBurst+arrival.AnswerRate {
			t.Errorf("%s: %d answered in a second", tt.name, answered)
		}
	}
}

// GETPORT is answered while DUMPs have spent ExcessRate.
func TestShortPastLong(t *testing.T) {
	s := newTestServer(testServices())
	seen := countRefusals(s)
	d := newTestDatagrams(s)
	a := arrival.Arrival{Local: netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666")}
	from := netip.MustParseAddrPort("[2001:db8::2]:53")
	now := time.Unix(1e9, 0)
	dumps := 0
	for {
		reply, why := d.question(testkit.Unhex(t, callHead(3, 4)), 0, a, from, now)
		if reply == nil {
			if why != refusedRate {
				t.Errorf("silence for %s", refusalNames[why])
			}
			break
		}
		dumps++
	}
	if dumps == 0 || dumps > 40 {
		t.Errorf("%d DUMPs were answered at once", dumps)
	}
	for _, call := range []string{
		callHead(2, 3) + "000186a3 00000003 00000006 00000000",
		callHead(4, 3) + "000186a0 00000003 00000000 00000000 00000000", // the shortest question with the longest address in its Reply
		callHead(4, 9) + rpcbNFS6,
		callHead(5, 0),
	} {
		if reply, why := d.question(testkit.Unhex(t, call), 0, a, from, now); reply == nil {
			t.Errorf("%s is not answered: %s", call, refusalNames[why])
		}
	}
	if reply, _ := d.question(testkit.Unhex(t, callHead(3, 4)), 0, a, from, now.Add(time.Second)); reply == nil {
		t.Error("a second later a DUMP is not answered")
	}
	if n := seen(refusedMalformed, true); n != 0 {
		t.Errorf("%d malformed", n)
	}
}

// Datagrams without a Reply, and their reasons.
func TestSilence(t *testing.T) {
	s := newTestServer(testServices())
	s.setAllow([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")})
	null := testkit.Unhex(t, callHead(2, 0))
	here := arrival.Arrival{Local: netip.MustParseAddr("192.0.2.1")}
	for _, tt := range []struct {
		name  string
		flags int
		a     arrival.Arrival
		from  string
		want  refusal
	}{
		{"allowed", 0, here, "192.0.2.7:1023", refusedNot},
		{"allowed, as the socket for both families has it", 0, here, "[::ffff:192.0.2.7]:1023", refusedNot},
		{"allowed, IPv6", 0, here, "[2001:db8::1]:1023", refusedNot},
		{"not allowed", 0, here, "198.51.100.1:1023", refusedDenied},
		{"not allowed, mapped", 0, here, "[::ffff:198.51.100.1]:1023", refusedDenied},
		{"cut", unix.MSG_TRUNC, here, "192.0.2.7:1023", refusedLong},
		{"control cut", unix.MSG_CTRUNC, here, "192.0.2.7:1023", refusedLong},
		{"to a group", 0, arrival.Arrival{Local: here.Local, Group: true}, "192.0.2.7:1023", refusedGroup},
		{"to an unknown address", 0, arrival.Arrival{}, "192.0.2.7:1023", refusedGroup},
	} {
		d := newTestDatagrams(s)
		reply, why := d.question(null, tt.flags, tt.a, netip.MustParseAddrPort(tt.from), time.Unix(1e9, 0))
		if why != tt.want || (reply != nil) != (tt.want == refusedNot) {
			t.Errorf("%s: %x, %s; want %s", tt.name, reply, refusalNames[why], refusalNames[tt.want])
		}
	}
}
