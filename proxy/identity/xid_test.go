package identity

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

var testBridge = NewBridge("a bridge")

// An xidUser is a user of a client of a bridge, for tests.
type xidUser struct {
	identity, upstream string
	origin             Origin
	flavor             uint32
	credential         []byte
}

// unix is the body of an AUTH_SYS credential.
func unix(stamp uint32, machine string, uid uint32) []byte {
	b := testkit.AppendOpaque(testkit.Words(stamp), []byte(machine))
	return testkit.AppendWords(b, uid, uid, 0)
}

// someone is the xidUser that the tests compare others with.
func someone() xidUser {
	o := OriginOf(netip.MustParseAddrPort("[2001:db8::1]:800"), false)
	return xidUser{"host 127.0.0.1:2049", "storage", o, oncrpc.FlavorSys, unix(1, "client", 0)}
}

// call returns a Call of s with the procedure REMOVE.
func (s *xidUser) call(xid uint32, args string) *oncrpc.Call {
	b := testkit.Words(xid, 0, 2, oncrpc.ProgramNFS, 3, 12, s.flavor)
	b = testkit.AppendOpaque(b, s.credential)
	b = testkit.AppendWords(b, 0, 0)
	var h oncrpc.Call
	if err := oncrpc.ParseCall(append(b, args...), &h); err != nil {
		panic(err)
	}
	return &h
}

// xid returns the XID that a new process gives the Call.
func (s *xidUser) xid(xid uint32, args string) uint32 {
	h := s.call(xid, args)
	b := NewBridge(s.identity)
	key := b.ClientKey(s.upstream, s.origin)
	users := NewUsers()
	return xidOf(users.find(&key, h), h)
}

// TestXIDOfAnotherProcess: a Call that comes again to the process that follows has the XID that
// it had, also with another stamp, and any other Call has another XID.
func TestXIDOfAnotherProcess(t *testing.T) {
	t.Parallel()
	s := someone()
	first := s.xid(77, "name")
	if again := s.xid(77, "name"); again != first {
		t.Errorf("XID %#x, and %#x in the next process", first, again)
	}
	s.credential = unix(2, "client", 0)
	if again := s.xid(77, "name"); again != first {
		t.Errorf("XID %#x, and %#x with another stamp", first, again)
	}
	for name, other := range map[string]func(s *xidUser){
		"another identity":                 func(s *xidUser) { s.identity = "host 127.0.0.1:2050" },
		"another upstream":                 func(s *xidUser) { s.upstream = "storage2" },
		"another address of the same /64":  func(s *xidUser) { s.origin.addr = netip.MustParseAddr("2001:db8::2") },
		"another port":                     func(s *xidUser) { s.origin.port++ },
		"an unknown port":                  func(s *xidUser) { s.origin.port = 0 },
		"another link":                     func(s *xidUser) { s.origin.addr = s.origin.addr.WithZone("eth0") },
		"RDMA":                             func(s *xidUser) { s.origin = OriginOf(netip.AddrPortFrom(s.origin.addr, s.origin.port), true) },
		"another user":                     func(s *xidUser) { s.credential = unix(1, "client", 1001) },
		"another machine name":             func(s *xidUser) { s.credential = unix(1, "clients", 0) },
		"another flavor":                   func(s *xidUser) { s.flavor = oncrpc.FlavorShort },
		"no credential":                    func(s *xidUser) { s.flavor, s.credential = oncrpc.FlavorNone, nil },
		"an identity that ends at another": func(s *xidUser) { s.identity, s.upstream = "host 127.0.0.1:2049s", "torage" },
	} {
		s := someone()
		if other(&s); s.xid(77, "name") == first {
			t.Errorf("%s: the same XID", name)
		}
	}
	s = someone()
	if s.xid(77, "nome") == first || s.xid(77, "name\x00") == first || s.xid(78, "name") == first {
		t.Error("the same XID for another Call")
	}
}

// TestXIDOverRDMA: a client over RDMA is the same from every port, and has the XIDs that earlier versions gave it. The
// number is of the version of November 2026.
func TestXIDOverRDMA(t *testing.T) {
	t.Parallel()
	s := someone()
	for _, port := range []uint16{0, 800, 801} {
		s.origin = OriginOf(netip.AddrPortFrom(s.origin.addr, port), true)
		if x := s.xid(77, "name"); x != 0x27ac09a6 {
			t.Errorf("XID %#x from port %d", x, port)
		}
	}
}

// TestXIDsOfACount: the Calls of a client that counts its XIDs, in network order or, as Linux
// does on x86, in the other one, have different XIDs if their arguments are the same.
func TestXIDsOfACount(t *testing.T) {
	t.Parallel()
	s := someone()
	p := testPermutation(1)
	for name, order := range map[string]func(uint32) uint32{
		"network order": func(n uint32) uint32 { return n },
		"host order":    bits.ReverseBytes32,
	} {
		const start, calls = 0xfffffc00, 1 << 17
		h := s.call(0, "an argument of more than sixteen octets")
		seen := make(map[uint32]bool, calls)
		for n := range uint32(calls) {
			h.XID = order(start + n)
			x := xidOf(p, h)
			if seen[x] {
				t.Fatalf("%s: two Calls have the XID %#x", name, x)
			}
			seen[x] = true
		}
	}
}

// TestXIDsOfTwins: clients of one address and one user that use the same XIDs at the same time
// for different Calls have XIDs of their own.
func TestXIDsOfTwins(t *testing.T) {
	t.Parallel()
	s := someone()
	p := testPermutation(1)
	seen := make(map[uint32]bool)
	const clients, calls = 100, 100
	for c := range uint32(clients) {
		for n := range uint32(calls) {
			args := append(make([]byte, 40), testkit.Words(c)...)
			seen[xidOf(p, s.call(n, string(args)))] = true
		}
	}
	if met := clients*calls - len(seen); met > 1 {
		t.Errorf("%d of %d Calls have the XID of another", met, clients*calls)
	}
}

// TestXIDArguments: the XID depends on each octet of the arguments that a server's duplicate
// request cache compares, and on their length.
func TestXIDArguments(t *testing.T) {
	t.Parallel()
	s := someone()
	p := testPermutation(1)
	for _, n := range []int{0, 1, 15, 16, 17, 100, hashedArguments - 1, hashedArguments} {
		args := make([]byte, n)
		whole := xidOf(p, s.call(1, string(args)))
		for i := range args {
			args[i] = 1
			if xidOf(p, s.call(1, string(args))) == whole {
				t.Errorf("octet %d of %d does not matter", i, n)
			}
			args[i] = 0
		}
		if xidOf(p, s.call(1, string(make([]byte, n+1)))) == whole {
			t.Errorf("%d octets have the XID of %d", n+1, n)
		}
	}
}

// TestArgumentsHash: the hash is that of earlier versions, so that a Call which is sent again through a bridge of another
// version has the XID that the server knows. The number is of the version of November 2026.
func TestArgumentsHash(t *testing.T) {
	t.Parallel()
	s := someone()
	args := make([]byte, hashedArguments+50)
	for i := range args {
		args[i] = byte(i*7 + 1)
	}
	sum := uint32(0)
	for n := range args {
		sum = bits.RotateLeft32(sum, 5) ^ argumentsHash(1, s.call(1, string(args[:n])))
	}
	if sum != 0xb788516c {
		t.Errorf("the hashes of %d arguments have the sum %#x", len(args), sum)
	}
}

// TestXIDsOfTheBridge: the Calls that the bridge makes have XIDs of their own.
func TestXIDsOfTheBridge(t *testing.T) {
	t.Parallel()
	x, y := NewXIDs(), NewXIDs()
	seen := make(map[uint32]bool)
	for range 1000 {
		seen[x.Fresh()], seen[y.Fresh()] = true, true
	}
	if len(seen) < 1999 {
		t.Errorf("%d XIDs for 2000 Calls of two processes", len(seen))
	}
}

func TestXIDAllocations(t *testing.T) {
	s := someone()
	h := s.call(7, string(make([]byte, 60)))
	key := testBridge.ClientKey("storage", s.origin)
	users := NewUsers()
	n := uint32(0)
	if got := testing.AllocsPerRun(1000, func() {
		n++
		binary.BigEndian.PutUint32(h.Message[oncrpc.CredentialPos+h.CredentialLen-4:], n) // another user each time
		h.XID = xidOf(users.find(&key, h), h)
	}); got != 0 {
		t.Errorf("an XID makes %v allocations", got)
	}
}

func BenchmarkXID(b *testing.B) {
	s := someone()
	key := testBridge.ClientKey("storage", s.origin)
	users := NewUsers()
	for _, args := range []int{36, 256} {
		b.Run(map[int]string{36: "GETATTR", 256: "long"}[args], func(b *testing.B) {
			h := s.call(7, string(make([]byte, args)))
			b.ReportAllocs()
			for b.Loop() {
				h.XID = xidOf(users.find(&key, h), h)
			}
		})
	}
	b.Run("another user", func(b *testing.B) {
		h := s.call(7, string(make([]byte, 36)))
		b.ReportAllocs()
		for n := uint32(0); b.Loop(); n++ {
			binary.BigEndian.PutUint32(h.Message[oncrpc.CredentialPos+h.CredentialLen-4:], n)
			h.XID = xidOf(users.find(&key, h), h)
		}
	})
}
