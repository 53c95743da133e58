package rpcbind

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// GETSTAT returns the counts of questions, by version: RFC 1833 Section 2.1.
func TestGetStat(t *testing.T) {
	s := newTestServer(testServices())
	for _, ask := range []string{
		callHead(2, 0),
		callHead(2, 3) + "000186a3 00000003 00000006 00000000", // found
		callHead(2, 3) + "000186a3 00000003 00000006 00000000", // found
		callHead(2, 3) + "000186a3 00000003 00000011 00000000", // no UDP
		callHead(2, 3) + "000186a3 00000003 00000001 00000000", // no netid: no lookup
		callHead(2, 3) + "000186a3 00000003",                   // garbage: no lookup
		callHead(2, 6),                                         // no such procedure
		callHead(5, 0),                                         // no such version
		callHead(3, 1) + rpcbNFS,                               // SET: FALSE
		callHead(3, 3) + rpcbNone,
		callHead(4, 9) + rpcbNFSRDMA,
		callHead(4, 5),
	} {
		s.answer(testkit.Unhex(t, ask), overTCP("192.0.2.1"))
	}
	want := testkit.Unhex(t, success+`
		# version 2: NULL 1, GETPORT 5
		00000001 00000000 00000000 00000005 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000
		00000001 000186a3 00000003 00000002 00000000 00000003 74637000  # 100003 3 tcp: 2 found
		00000001 000186a3 00000003 00000000 00000001 00000003 75647000  # 100003 3 udp: 1 not
		00000000 00000000
		# version 3: SET 1, GETADDR 1
		00000000 00000001 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000
		00000001 000186a4 00000001 00000000 00000001 00000003 74637000  # 100004 1 tcp: 1 not
		00000000 00000000
		# version 4: BCAST 1, GETVERSADDR 1, GETSTAT 1
		00000000 00000000 00000000 00000000 00000000 00000001 00000000 00000000 00000000 00000001 00000000 00000000 00000001
		00000000 00000000
		00000001 000186a3 00000003 00000001 00000000 00000004 72646d61  # 100003 3 rdma: 1 found
		00000000 00000000`)
	if got, ok := s.answer(testkit.Unhex(t, callHead(4, 12)), overTCP("192.0.2.1")); !ok || !bytes.Equal(got, want) {
		t.Errorf("GETSTAT = %x\nwant      %x", got, want)
	}
}

// A client that asks for every number does not fill the memory, and lookups of existing
// services are still counted.
func TestStrangers(t *testing.T) {
	s := newTestServer(testServices())
	size := func() int { return len(s.stats.append(nil)) }
	for i := range 10000 {
		s.answer(testkit.Unhex(t, callHead(3, 3)+fmt.Sprintf("%08x 00000001 00000000 00000000 00000000", i)), overTCP("192.0.2.1"))
		s.answer(testkit.Unhex(t, callHead(2, 3)+fmt.Sprintf("00020000 %08x 00000006 00000000", i)), overTCP("192.0.2.1"))
	}
	if n := size(); n > 3*(15+2)*4+2*maxStrangers*28 {
		t.Errorf("statistics of %d octets", n)
	}
	before := size()
	s.answer(testkit.Unhex(t, callHead(3, 3)+rpcbNFS), overTCP("192.0.2.1"))
	if n := size(); n != before+28 {
		t.Errorf("a lookup of an existing service takes %d octets, want 28", n-before)
	}
}

// A count stops at the largest XDR int.
func TestSaturation(t *testing.T) {
	n := uint32(math.MaxInt32 - 1)
	bump(&n)
	bump(&n)
	if n != math.MaxInt32 {
		t.Errorf("counted to %d", n)
	}
}
