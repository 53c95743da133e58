package rpcbind

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// callHead returns a Call's header with AUTH_NONE, in hex.
func callHead(version, procedure int) string {
	return fmt.Sprintf("00000007 00000000 00000002 000186a0 %08x %08x 00000000 00000000 00000000 00000000 ", version, procedure)
}

// success is the header of a successful Reply, in hex.
const success = "00000007 00000001 00000000 00000000 00000000 00000000 "

// Arguments of version 3 and 4.
const (
	rpcbNFS     = "000186a3 00000003 00000003 74637000 00000000 00000000 "          // 100003, 3, "tcp", "", ""
	rpcbNFS6    = "000186a3 00000003 00000004 74637036 00000000 00000000 "          // "tcp6"
	rpcbNFSRDMA = "000186a3 00000003 00000004 72646d61 00000000 00000000 "          // "rdma"
	rpcbNFSUDP  = "000186a3 00000003 00000003 75647000 00000000 00000000 "          // "udp"
	rpcbNFSAny  = "000186a3 00000003 00000000 00000000 00000000 "                   // ""
	rpcbNFSOdd  = "000186a3 00000003 00000005 7469636c 74000000 00000000 00000000 " // "ticlt"
	rpcbNFS2    = "000186a3 00000002 00000003 74637000 00000000 00000000 "          // 100003, 2
	rpcbNone    = "000186a4 00000001 00000003 74637000 00000000 00000000 "          // 100004, 1
)

// replies are whole Replies, octet for octet. RFC 1833 Sections 2.1 and 3.1 have the
// layouts.
var replies = []struct {
	name    string
	q       question
	call    string
	reply   string // "" for no Reply
	refused refusal
}{
	{"v2 NULL", overTCP("192.0.2.1"), callHead(2, 0), success, refusedNot},
	{"v3 NULL", overTCP("192.0.2.1"), callHead(3, 0), success, refusedNot},
	{"v4 NULL", overUDP("2001:db8::1"), callHead(4, 0), success, refusedNot},
	{"v2 SET", overTCP("127.0.0.1"), callHead(2, 1) + "000186a4 00000001 00000006 00000400", success + "00000000", refusedRegistration},
	{"v2 UNSET", overTCP("127.0.0.1"), callHead(2, 2) + "000186a3 00000003 00000006 00000801", success + "00000000", refusedRegistration},
	{"v3 SET", overTCP("127.0.0.1"), callHead(3, 1) + rpcbNone, success + "00000000", refusedRegistration},
	{"v3 UNSET", overUDP("127.0.0.1"), callHead(3, 2) + rpcbNFS, success + "00000000", refusedRegistration},
	{"v4 SET", overTCP("127.0.0.1"), callHead(4, 1) + rpcbNone, success + "00000000", refusedRegistration},
	{"v4 UNSET", overTCP("127.0.0.1"), callHead(4, 2) + rpcbNFS, success + "00000000", refusedRegistration},

	{"GETPORT tcp", overUDP("192.0.2.1"), callHead(2, 3) + "000186a3 00000003 00000006 00000000", success + "00000801", refusedNot},
	{"GETPORT of another version", overUDP("192.0.2.1"), callHead(2, 3) + "000186a3 00000002 00000006 00000000", success + "00000801", refusedNot},
	{"GETPORT udp", overUDP("192.0.2.1"), callHead(2, 3) + "000186a3 00000003 00000011 00000000", success + "00000000", refusedNot},
	{"GETPORT MOUNT udp", overTCP("192.0.2.1"), callHead(2, 3) + "000186a5 00000003 00000011 00000000", success + "00000000", refusedNot},
	{"GETPORT rpcbind udp", overTCP("192.0.2.1"), callHead(2, 3) + "000186a0 00000002 00000011 00000000", success + "0000006f", refusedNot},
	{"GETPORT of no protocol", overTCP("192.0.2.1"), callHead(2, 3) + "000186a3 00000003 00000000 00000000", success + "00000000", refusedNot},
	{"GETPORT of nothing", overTCP("192.0.2.1"), callHead(2, 3) + "000186a4 00000001 00000006 00000000", success + "00000000", refusedNot},
	{"GETPORT over IPv6", overTCP("2001:db8::1"), callHead(2, 3) + "000186b8 00000001 00000006 00000000", success + "00000296", refusedNot},
	{"GETPORT of a loopback listener", overTCP("192.0.2.1"), callHead(2, 3) + "000186b5 00000004 00000006 00000000", success + "00000000", refusedNot},
	{"GETPORT there", overTCP("127.0.0.1"), callHead(2, 3) + "000186b5 00000004 00000006 00000000", success + "00000fcd", refusedNot},
	{"GETPORT with octets behind", overTCP("192.0.2.1"), callHead(2, 3) + "000186a3 00000003 00000006 00000000 ffffffff", success + "00000801", refusedNot},

	{"v3 GETADDR", overTCP("192.0.2.1"), callHead(3, 3) + rpcbNFS, success + `
		0000000d 3139322e 302e322e 312e382e 31 000000  # 192.0.2.1.8.1`, refusedNot},
	{"v4 GETADDR over UDP", overUDP("192.0.2.77"), callHead(4, 3) + rpcbNFS, success + `
		0000000e 3139322e 302e322e 37372e38 2e31 0000  # 192.0.2.77.8.1`, refusedNot},
	{"GETADDR over IPv6", overTCP("2001:db8::1"), callHead(4, 3) + rpcbNFS6, success + `
		0000000f 32303031 3a646238 3a3a312e 382e31 00  # 2001:db8::1.8.1`, refusedNot},
	{"GETADDR tcp6 over IPv4", overTCP("192.0.2.1"), callHead(4, 3) + rpcbNFS6, success + `
		00000006 3a3a2e38 2e31 0000                    # ::.8.1`, refusedNot},
	{"GETADDR rdma", overTCP("192.0.2.1"), callHead(4, 3) + rpcbNFSRDMA, success + `
		0000000f 3139322e 302e322e 312e3738 2e3831 00  # 192.0.2.1.78.81`, refusedNot},
	{"GETADDR rdma asked elsewhere", overTCP("198.51.100.9"), callHead(4, 3) + rpcbNFSRDMA, success + `
		0000000f 3139322e 302e322e 312e3738 2e3831 00  # 192.0.2.1.78.81`, refusedNot},
	{"GETADDR udp", overTCP("192.0.2.1"), callHead(4, 3) + rpcbNFSUDP, success + "00000000", refusedNot},
	{"GETADDR of the transport's netid", overTCP("192.0.2.1"), callHead(4, 3) + rpcbNFSAny, success + `
		0000000d 3139322e 302e322e 312e382e 31 000000  # 192.0.2.1.8.1`, refusedNot},
	{"GETADDR of an unknown netid", overTCP("192.0.2.1"), callHead(3, 3) + rpcbNFSOdd, success + `
		0000000d 3139322e 302e322e 312e382e 31 000000  # 192.0.2.1.8.1`, refusedNot},
	{"GETADDR of UDP's netid", overUDP("192.0.2.1"), callHead(4, 3) + rpcbNFSAny, success + "00000000", refusedNot},
	{"GETADDR of another version", overTCP("192.0.2.1"), callHead(3, 3) + rpcbNFS2, success + `
		0000000d 3139322e 302e322e 312e382e 31 000000  # 192.0.2.1.8.1`, refusedNot},
	{"GETADDR of nothing", overTCP("192.0.2.1"), callHead(4, 3) + rpcbNone, success + "00000000", refusedNot},
	{"GETVERSADDR", overTCP("192.0.2.1"), callHead(4, 9) + rpcbNFS, success + `
		0000000d 3139322e 302e322e 312e382e 31 000000  # 192.0.2.1.8.1`, refusedNot},
	{"GETVERSADDR of another version", overTCP("192.0.2.1"), callHead(4, 9) + rpcbNFS2, success + "00000000", refusedNot},

	{"v2 DUMP", overTCP("127.0.0.1"), callHead(2, 4), success + `
		00000001 000186a0 00000002 00000006 0000006f
		00000001 000186a0 00000002 00000011 0000006f
		00000001 000186a0 00000003 00000006 0000006f
		00000001 000186a0 00000003 00000011 0000006f
		00000001 000186a0 00000004 00000006 0000006f
		00000001 000186a0 00000004 00000011 0000006f
		00000001 000186a3 00000003 00000006 00000801
		00000001 000186a3 00000004 00000006 00000801
		00000001 000186a5 00000003 00000006 00000801
		00000001 000186b5 00000004 00000006 00000fcd
		00000000`, refusedNot},
	{"v3 DUMP", overTCP("192.0.2.1"), callHead(3, 4), success + dumped, refusedNot},
	{"v4 DUMP", overTCP("2001:db8::1"), callHead(4, 4), success + dumped, refusedNot},

	{"v2 CALLIT", overUDP("192.0.2.1"), callHead(2, 5) + "000186a3 00000003 00000000 00000000", "", refusedCall},
	{"v3 CALLIT", overUDP("192.0.2.1"), callHead(3, 5) + "000186a3 00000003 00000000 00000000", "", refusedCall},
	{"v4 BCAST", overTCP("192.0.2.1"), callHead(4, 5) + "000186a3 00000003 00000000 00000000", "", refusedCall},
	{
		"INDIRECT", overTCP("192.0.2.1"), callHead(4, 10) + "000186a3 00000003 00000000 00000000",
		"00000007 00000001 00000000 00000000 00000000 00000003", refusedIndirect,
	},

	{"UADDR2TADDR of nonsense", overTCP("192.0.2.1"), callHead(3, 7) + "00000004 312e322e", success + "00000000 00000000", refusedNot},
	{"TADDR2UADDR of nonsense", overTCP("192.0.2.1"), callHead(4, 8) + "00000010 00000004 ffffffff", success + "00000000", refusedNot},

	{"GETADDRLIST", overTCP("192.0.2.1"), callHead(4, 11) + rpcbNFS, success + `
		00000001
		0000000d 3139322e 302e322e 312e382e 31 000000    # 192.0.2.1.8.1
		00000003 746370 00  00000003                     # tcp, NC_TPI_COTS_ORD
		00000004 696e6574   00000003 746370 00           # inet, tcp
		00000001
		0000000f 3139322e 302e322e 312e3738 2e3831 00    # 192.0.2.1.78.81
		00000004 72646d61   00000002                     # rdma, NC_TPI_COTS
		00000004 696e6574   00000004 72646d61            # inet, rdma
		00000000`, refusedNot},
	{"GETADDRLIST of another version", overTCP("192.0.2.1"), callHead(4, 11) + rpcbNFS2, success + "00000000", refusedNot},

	{
		"RPC version 3", overTCP("192.0.2.1"), "00000007 00000000 00000003 000186a0 00000002 00000000 00000000 00000000 00000000 00000000",
		"00000007 00000001 00000001 00000000 00000002 00000002", refusedVersion,
	},
	{
		"program 100003", overTCP("192.0.2.1"), "00000007 00000000 00000002 000186a3 00000003 00000000 00000000 00000000 00000000 00000000",
		"00000007 00000001 00000000 00000000 00000000 00000001", refusedProgram,
	},
	{"version 1", overTCP("192.0.2.1"), callHead(1, 0), "00000007 00000001 00000000 00000000 00000000 00000002 00000002 00000004", refusedVersion},
	{"version 5", overUDP("192.0.2.1"), callHead(5, 0), "00000007 00000001 00000000 00000000 00000000 00000002 00000002 00000004", refusedVersion},
	{"v2 procedure 6", overTCP("192.0.2.1"), callHead(2, 6), "00000007 00000001 00000000 00000000 00000000 00000003", refusedProcedure},
	{"v3 GETVERSADDR", overTCP("192.0.2.1"), callHead(3, 9) + rpcbNFS, "00000007 00000001 00000000 00000000 00000000 00000003", refusedProcedure},
	{"v3 GETSTAT", overTCP("192.0.2.1"), callHead(3, 12), "00000007 00000001 00000000 00000000 00000000 00000003", refusedProcedure},
	{"v4 procedure 13", overTCP("192.0.2.1"), callHead(4, 13), "00000007 00000001 00000000 00000000 00000000 00000003", refusedProcedure},

	{"AUTH_SYS", overTCP("192.0.2.1"), `
		00000007 00000000 00000002 000186a0 00000002 00000003
		00000001 00000014 00000000 00000000 00000000 00000000 00000000  00000000 00000000
		000186a3 00000003 00000006 00000000`, success + "00000801", refusedNot},
	{
		"an unknown flavor", overTCP("192.0.2.1"), "00000007 00000000 00000002 000186a0 00000002 00000000 0005f000 00000000 00000000 00000000",
		success, refusedNot,
	},
	{
		"AUTH_TLS probe", overTCP("192.0.2.1"), "00000007 00000000 00000002 000186a0 00000002 00000000 00000007 00000000 00000000 00000000",
		success, refusedNot,
	},
	{
		"AUTH_TLS on more", overTCP("192.0.2.1"), "00000007 00000000 00000002 000186a0 00000002 00000004 00000007 00000000 00000000 00000000",
		"00000007 00000001 00000001 00000001 00000001", refusedAuth,
	},
	{"RPCSEC_GSS", overTCP("192.0.2.1"), `
		00000007 00000000 00000002 000186a0 00000002 00000000
		00000006 00000014 00000001 00000001 00000000 00000001 00000000  00000000 00000000`, "00000007 00000001 00000001 00000001 00000001", refusedAuth},
}

// dumped is the result of DUMP of versions 3 and 4 for testServices. It does not depend on
// the address of the question.
const dumped = `
	00000001 000186a0 00000002 00000003 74637000 0000000d 302e302e302e302e302e313131 000000 ` + rdmabridge + `
	00000001 000186a0 00000002 00000003 75647000 0000000d 302e302e302e302e302e313131 000000 ` + rdmabridge + `
	00000001 000186a0 00000003 00000003 74637000 0000000d 302e302e302e302e302e313131 000000 ` + rdmabridge + `
	00000001 000186a0 00000003 00000004 74637036 00000008 3a3a2e302e313131 ` + rdmabridge + `
	00000001 000186a0 00000003 00000003 75647000 0000000d 302e302e302e302e302e313131 000000 ` + rdmabridge + `
	00000001 000186a0 00000003 00000004 75647036 00000008 3a3a2e302e313131 ` + rdmabridge + `
	00000001 000186a0 00000004 00000003 74637000 0000000d 302e302e302e302e302e313131 000000 ` + rdmabridge + `
	00000001 000186a0 00000004 00000004 74637036 00000008 3a3a2e302e313131 ` + rdmabridge + `
	00000001 000186a0 00000004 00000003 75647000 0000000d 302e302e302e302e302e313131 000000 ` + rdmabridge + `
	00000001 000186a0 00000004 00000004 75647036 00000008 3a3a2e302e313131 ` + rdmabridge + `
	00000001 000186a3 00000003 00000003 74637000 0000000b 302e302e302e302e382e31 00 ` + rdmabridge + `
	00000001 000186a3 00000003 00000004 74637036 00000006 3a3a2e382e31 0000 ` + rdmabridge + `
	00000001 000186a3 00000004 00000003 74637000 0000000b 302e302e302e302e382e31 00 ` + rdmabridge + `
	00000001 000186a3 00000004 00000004 74637036 00000006 3a3a2e382e31 0000 ` + rdmabridge + `
	00000001 000186a5 00000003 00000003 74637000 0000000b 302e302e302e302e382e31 00 ` + rdmabridge + `
	00000001 000186a5 00000003 00000004 74637036 00000006 3a3a2e382e31 0000 ` + rdmabridge + `
	00000001 000186a3 00000003 00000004 72646d61 0000000f 3139322e302e322e312e37382e3831 00 ` + rdmabridge + `
	00000001 000186b5 00000004 00000003 74637000 00000010 3132372e302e302e312e31352e323035 ` + rdmabridge + `
	00000001 000186b8 00000001 00000004 74637036 00000011 323030313a6462383a3a312e322e313530 000000 ` + rdmabridge + `
	00000000`

// rdmabridge is the owner.
const rdmabridge = "0000000a 72646d61 62726964 67650000"

func TestReplies(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			s := newTestServer(testServices())
			call := testkit.Unhex(t, tt.call)
			before := bytes.Clone(call)
			got, ok := s.answer(call, tt.q)
			if want := testkit.Unhex(t, tt.reply); !bytes.Equal(got, want) || !ok {
				t.Errorf("reply, ok = %x, %v\nwant          %x", got, ok, want)
			}
			if tt.reply == "" && got != nil {
				t.Error("silence is an empty reply")
			}
			if !bytes.Equal(call, before) {
				t.Error("the Call was changed")
			}
		})
	}
}

// Each refusal is counted once, under its reason.
func TestRepliesCounted(t *testing.T) {
	for _, tt := range replies {
		s := newTestServer(testServices())
		seen := countRefusals(s)
		s.answer(testkit.Unhex(t, tt.call), tt.q)
		for r := refusedNot; r < refusals; r++ {
			want := uint64(0)
			if r == tt.refused && r != refusedNot {
				want = 1
			}
			if got := seen(r, tt.q.datagram); got != want {
				t.Errorf("%s: %d refused for %q, want %d", tt.name, got, refusalNames[r], want)
			}
		}
	}
}

// The time, and addresses as sockaddrs, depend on the machine of the test.
func TestHostReplies(t *testing.T) {
	s := newTestServer(testServices())
	q := overTCP("192.0.2.1")
	for v := 3; v <= 4; v++ {
		before := uint32(time.Now().Unix())
		got, _ := s.answer(testkit.Unhex(t, callHead(v, 6)), q)
		after := uint32(time.Now().Unix())
		if len(got) != 28 || !bytes.Equal(got[:24], testkit.Unhex(t, success)) {
			t.Fatalf("v%d GETTIME: %x", v, got)
		}
		if now := binary.BigEndian.Uint32(got[24:]); now < before || now > after {
			t.Errorf("v%d GETTIME = %d, want %d to %d", v, now, before, after)
		}
		for _, a := range []struct {
			uaddr    string
			sockaddr []byte
		}{
			{"192.0.2.1.8.1", append(binary.NativeEndian.AppendUint16(nil, 2), testkit.Unhex(t, "0801 c0000201 0000000000000000")...)},
			{"2001:db8::1.78.81", append(binary.NativeEndian.AppendUint16(nil, 10), testkit.Unhex(t, "4e51 00000000 20010db8 00000000 00000000 00000001 00000000")...)},
		} {
			want := xdr.AppendOpaque(xdr.AppendUint32(testkit.Unhex(t, success), uint32(len(a.sockaddr))), a.sockaddr)
			call := xdr.AppendOpaque(testkit.Unhex(t, callHead(v, 7)), []byte(a.uaddr))
			if got, ok := s.answer(call, q); !ok || !bytes.Equal(got, want) {
				t.Errorf("v%d UADDR2TADDR(%s) = %x, want %x", v, a.uaddr, got, want)
			}
			want = xdr.AppendOpaque(testkit.Unhex(t, success), []byte(a.uaddr))
			call = xdr.AppendOpaque(xdr.AppendUint32(testkit.Unhex(t, callHead(v, 8)), 128), a.sockaddr)
			if got, ok := s.answer(call, q); !ok || !bytes.Equal(got, want) {
				t.Errorf("v%d TADDR2UADDR(%s) = %x, want %x", v, a.uaddr, got, want)
			}
		}
	}
}

const garbage = "00000007 00000001 00000000 00000000 00000000 00000004"

// Wrong input and its Replies. "" is no Reply, after which a TCP connection is closed.
func TestMalformed(t *testing.T) {
	const badCredential, badVerifier = "00000007 00000001 00000001 00000001 00000001", "00000007 00000001 00000001 00000001 00000003"
	long := fmt.Sprintf("%0*x", 404*2, 0)
	for _, tt := range []struct{ name, message, reply string }{
		{"nothing", "", ""},
		{"an octet", "07", ""},
		{"an XID", "00000007", ""},
		{"a Reply", success, ""},
		{"a Reply of 40 octets", success + "00000000 00000000 00000000 00000000", ""},
		{"message type 2", "00000007 00000002 00000002 000186a0 00000002 00000000 00000000 00000000 00000000 00000000", ""},
		{"XID and direction", callHead(2, 0)[:17], garbage},
		{"a header cut", callHead(2, 0)[:80], garbage},
		{"a credential of 401 octets", "00000007 00000000 00000002 000186a0 00000002 00000000 00000000 00000191 " + long + "00000000 00000000", badCredential},
		{"a credential of 4 GiB", "00000007 00000000 00000002 000186a0 00000002 00000000 00000000 ffffffff 00000000 00000000", badCredential},
		{"a verifier of 4 GiB", "00000007 00000000 00000002 000186a0 00000002 00000000 00000000 00000000 00000000 ffffffff", badVerifier},
		{"a verifier cut", "00000007 00000000 00000002 000186a0 00000002 00000000 00000000 00000000 00000000 00000004", garbage},

		{"GETPORT of nothing", callHead(2, 3), garbage},
		{"GETPORT cut", callHead(2, 3) + "000186a3 00000003 00000006", garbage},
		{"GETPORT cut in a unit", callHead(2, 3) + "000186a3 00000003 00000006 0000", garbage},
		{"v2 SET cut", callHead(2, 1) + "000186a3 00000003", garbage},
		{"v2 UNSET cut", callHead(2, 2), garbage},
		{"v3 SET cut", callHead(3, 1) + "000186a3 00000003 00000003 74637000 00000000", garbage},
		{"v4 UNSET cut", callHead(4, 2) + "000186a3", garbage},
		{"GETADDR of nothing", callHead(3, 3), garbage},
		{"GETADDR without an owner", callHead(4, 3) + "000186a3 00000003 00000003 74637000 00000000", garbage},
		{"GETADDR without roundup", callHead(4, 3) + "000186a3 00000003 00000003 746370", garbage},
		{"GETADDR, a netid of 4 GiB", callHead(4, 3) + "000186a3 00000003 ffffffff 74637000 00000000 00000000", garbage},
		{"GETADDR, a netid of 2 GiB", callHead(4, 3) + "000186a3 00000003 7fffffff 74637000 00000000 00000000", garbage},
		{"GETADDR, an address of 4 GiB less 1", callHead(4, 3) + "000186a3 00000003 00000000 fffffffe 00000000", garbage},
		{"GETADDR, an owner too long", callHead(4, 3) + "000186a3 00000003 00000000 00000000 00000001", garbage},
		{"GETADDR, half an octet short", callHead(4, 3) + "000186a3 00000003 00000005 7469636c 740000", garbage},
		{"GETVERSADDR cut", callHead(4, 9) + "000186a3 00000003", garbage},
		{"GETADDRLIST cut", callHead(4, 11) + "000186a3 00000003", garbage},
		{"UADDR2TADDR of nothing", callHead(3, 7), garbage},
		{"UADDR2TADDR too long", callHead(3, 7) + "00000005 312e322e", garbage},
		{"TADDR2UADDR of nothing", callHead(3, 8), garbage},
		{"TADDR2UADDR too long", callHead(3, 8) + "00000010 00000011 00000000", garbage},
	} {
		for _, q := range []question{overTCP("192.0.2.1"), overUDP("192.0.2.1")} {
			s := newTestServer(testServices())
			seen := countRefusals(s)
			got, ok := s.answer(testkit.Unhex(t, tt.message), q)
			if want := testkit.Unhex(t, tt.reply); !bytes.Equal(got, want) || ok != (tt.reply != "") {
				t.Errorf("%s: reply, ok = %x, %v; want %x", tt.name, got, ok, want)
			}
			why := refusedArguments
			switch tt.reply {
			case "":
				why = refusedMalformed
			case badCredential, badVerifier:
				why = refusedAuth
			}
			if seen(why, q.datagram) != 1 {
				t.Errorf("%s: not counted as %s", tt.name, refusalNames[why])
			}
		}
	}
}

// Every prefix of every Call is no Call, or gets GARBAGE_ARGS, or is whole.
func TestTruncated(t *testing.T) {
	s := newTestServer(testServices())
	for _, tt := range replies {
		call := testkit.Unhex(t, tt.call)
		for n := range call {
			got, ok := s.answer(call[:n:n], tt.q)
			var h oncrpc.Call
			header := oncrpc.ParseCall(call[:n], &h) == nil
			switch {
			case !ok && (got != nil || header):
				t.Errorf("%s: %d octets are no Call: %x", tt.name, n, got)
			case !ok || tt.refused == refusedCall:
			case len(got) < 20 || binary.BigEndian.Uint32(got) != 7:
				t.Errorf("%s: %d octets: %x", tt.name, n, got)
			}
		}
	}
}

// A Reply that is too long for a datagram is SYSTEM_ERR over UDP, and whole over TCP.
func TestLongReply(t *testing.T) {
	programs := make([]Program, 200)
	for i := range programs {
		programs[i] = Program{400000, uint32(i)}
	}
	s := newTestServer([]Service{{Address: netip.MustParseAddrPort("0.0.0.0:2049"), Programs: programs}})
	for v := 3; v <= 4; v++ {
		if got, ok := s.answer(testkit.Unhex(t, callHead(v, 4)), overTCP("192.0.2.1")); !ok || len(got) <= maxMessage {
			t.Errorf("v%d DUMP on TCP: %d octets, %v", v, len(got), ok)
		}
		want := testkit.Unhex(t, "00000007 00000001 00000000 00000000 00000000 00000005")
		if got, ok := s.answer(testkit.Unhex(t, callHead(v, 4)), overUDP("192.0.2.1")); !ok || !bytes.Equal(got, want) {
			t.Errorf("v%d DUMP on UDP: %x, %v; want %x", v, got, ok, want)
		}
	}
	if got, ok := s.answer(testkit.Unhex(t, callHead(2, 4)), overUDP("192.0.2.1")); !ok || len(got) != 24+20*(6+200)+4 {
		t.Errorf("v2 DUMP on UDP: %d octets, %v", len(got), ok)
	}
}

// The answer for several listeners depends on the address of the question.
func TestReach(t *testing.T) {
	at := func(a string, programs ...Program) Service {
		return Service{Address: netip.MustParseAddrPort(a), Programs: programs}
	}
	nfs3, nfs4 := Program{100003, 3}, Program{100003, 4}
	s := newTestServer([]Service{
		at("127.0.0.1:1001", nfs3),
		at("0.0.0.0:1002", nfs3),
		at("192.0.2.1:1003", nfs3),
		at("192.0.2.2:1004", nfs4),
		at("[fe80::1%eth0]:1005", nfs3),
	})
	for _, tt := range []struct {
		local   string
		version uint32
		port    uint32
		uaddr   string
	}{
		{"127.0.0.1", 3, 1001, "127.0.0.1.3.233"},    // its own address comes first
		{"127.0.0.2", 3, 1002, "127.0.0.2.3.234"},    // every address
		{"192.0.2.1", 3, 1003, "192.0.2.1.3.235"},    // its own address
		{"192.0.2.9", 3, 1002, "192.0.2.9.3.234"},    // every address
		{"192.0.2.2", 4, 1004, "192.0.2.2.3.236"},    // its own address
		{"192.0.2.9", 4, 1002, "192.0.2.2.3.236"},    // the port of v3 there; the address of v4
		{"192.0.2.2", 3, 1002, "192.0.2.2.3.234"},    // the version comes before the address
		{"fe80::1", 3, 1005, "fe80::1.3.237"},        // without the zone
		{"2001:db8::1", 3, 0, "fe80::1.3.237"},       // elsewhere
		{"192.0.2.9", 2, 1002, "192.0.2.9.3.234"},    // no such version, so the best other entry
		{"198.51.100.1", 1, 1002, "198.51.100.1.3."}, // likewise
	} {
		q := overTCP(tt.local)
		call := testkit.Unhex(t, callHead(2, 3)+fmt.Sprintf("000186a3 %08x 00000006 00000000", tt.version))
		got, _ := s.answer(call, q)
		if port := binary.BigEndian.Uint32(got[24:]); port != tt.port {
			t.Errorf("GETPORT %d at %s = %d, want %d", tt.version, tt.local, port, tt.port)
		}
		call = testkit.Unhex(t, callHead(4, 3)+fmt.Sprintf("000186a3 %08x 00000000 00000000 00000000", tt.version))
		got, _ = s.answer(call, q)
		n := int(binary.BigEndian.Uint32(got[24:]))
		if u := string(got[28 : 28+n]); len(u) < len(tt.uaddr) || u[:len(tt.uaddr)] != tt.uaddr {
			t.Errorf("GETADDR %d at %s = %s, want %s", tt.version, tt.local, u, tt.uaddr)
		}
	}
}

// A lock manager has one port on TCP and UDP. Linux's lockd asks for it over the transport of the lock, and sm-notify for
// the status monitor over UDP.
func TestServiceOnUDP(t *testing.T) {
	nlm, nsm := Program{100021, 4}, Program{100024, 1}
	at := netip.MustParseAddrPort("0.0.0.0:4045")
	s := newTestServer([]Service{{Address: at, Programs: []Program{nlm, nsm}}, {Address: at, UDP: true, Programs: []Program{nlm, nsm}}})
	for _, call := range []string{"000186b5 00000004 00000006 00000000", "000186b5 00000004 00000011 00000000", "000186b8 00000001 00000011 00000000"} {
		for _, q := range []question{overTCP("192.0.2.1"), overUDP("192.0.2.1")} {
			want := testkit.Unhex(t, success+"00000fcd")
			if got, ok := s.answer(testkit.Unhex(t, callHead(2, 3)+call), q); !ok || !bytes.Equal(got, want) {
				t.Errorf("GETPORT %s: %x, %v; want %x", call, got, ok, want)
			}
		}
	}
}

// A listener on loopback is not advertised to other hosts.
func TestLoopback(t *testing.T) {
	s := newTestServer(testServices())
	call := testkit.Unhex(t, callHead(4, 3)+"000186b5 00000004 00000000 00000000 00000000")
	for local, want := range map[string]string{"192.0.2.1": "", "127.0.0.1": "127.0.0.1.15.205", "127.0.0.7": "127.0.0.1.15.205"} {
		got, _ := s.answer(call, overTCP(local))
		if want := xdr.AppendOpaque(testkit.Unhex(t, success), []byte(want)); !bytes.Equal(got, want) {
			t.Errorf("GETADDR at %s = %x, want %x", local, got, want)
		}
		list, _ := s.answer(testkit.Unhex(t, callHead(4, 11)+"000186b5 00000004 00000000 00000000 00000000"), overTCP(local))
		if listed := len(list) > 28; listed != (want != "") {
			t.Errorf("GETADDRLIST at %s: %x", local, list)
		}
	}
}

// countRefusals gives s, which has no metrics, counters.
func countRefusals(s *Server) func(r refusal, datagram bool) uint64 {
	s.series.resolve(testMetrics())
	return func(r refusal, datagram bool) uint64 { return s.series.refused[transportIndex(datagram)][r].Value() }
}

func FuzzAnswer(f *testing.F) {
	for _, tt := range replies {
		f.Add(testkit.Unhex(f, tt.call), tt.q.datagram)
	}
	f.Add(testkit.Unhex(f, callHead(4, 6)), false)
	f.Add(testkit.Unhex(f, callHead(4, 12)), true)
	f.Add(xdr.AppendOpaque(testkit.Unhex(f, callHead(3, 7)), []byte("2001:db8::1.78.81")), false)
	f.Add(xdr.AppendOpaque(xdr.AppendUint32(testkit.Unhex(f, callHead(3, 8)), 28), taddr(netip.MustParseAddrPort("[2001:db8::1]:1"))), false)
	s := newTestServer(testServices())
	f.Fuzz(func(t *testing.T, m []byte, datagram bool) {
		q := question{local: netip.MustParseAddr("192.0.2.1"), datagram: datagram}
		before := bytes.Clone(m)
		reply, ok := s.answer(m, q)
		if !bytes.Equal(m, before) {
			t.Fatal("the Call was changed")
		}
		if !ok {
			if reply != nil {
				t.Fatalf("a reply to a message that is no Call: %x", reply)
			}
			return
		}
		if reply == nil {
			return
		}
		var r oncrpc.Reply
		if err := oncrpc.ParseReply(reply, &r); err != nil || r.XID != binary.BigEndian.Uint32(m) {
			t.Fatalf("reply %x: %v", reply, err)
		}
		if len(reply)%4 != 0 || datagram && len(reply) > maxMessage {
			t.Fatalf("reply of %d octets", len(reply))
		}
	})
}
