package proxyheader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// header4 is a header as HAProxy 2.6 sends it: 192.0.2.7:799 to 198.51.100.1:2049.
const header4 = `
	0d0a0d0a 000d0a51 5549540a  # signature
	21 11 000c                  # version 2, PROXY; TCP over IPv4; 12 octets
	c0000207 c6336401           # addresses
	031f 0801                   # ports
`

// header6 is 2001:db8::7 to 2001:db8::1, with TLVs: NOOP of one octet, and the client's TLS with the
// version and the name of its certificate.
const header6 = `
	0d0a0d0a 000d0a51 5549540a
	21 21 0045                           # TCP over IPv6; 69 octets
	20010db8 00000000 00000000 00000007
	20010db8 00000000 00000000 00000001
	d431 0801
	04 0001 00                           # NOOP
	20 001a  07 00000000                 # TLS: with a certificate, which is good
	21 0007 544c5376312e33               # its version
	22 0008 636c69656e742e61             # the name
`

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestParse(t *testing.T) {
	mapped := func() []byte {
		b := testkit.Unhex(t, header6)
		copy(b[16:], testkit.Unhex(t, "00000000 00000000 0000ffff c0000207"))
		return b
	}()
	for _, tt := range []struct {
		name string
		b    []byte
		want string // "" for none
	}{
		{"IPv4", testkit.Unhex(t, header4), "192.0.2.7:799"},
		{"IPv6", testkit.Unhex(t, header6), "[2001:db8::7]:54321"},
		{"an IPv4 client in a header of IPv6", mapped, "192.0.2.7:54321"},
		{"LOCAL", testkit.Unhex(t, "0d0a0d0a 000d0a51 5549540a 20 00 0000"), ""},
		{"LOCAL with addresses, which do not count", testkit.Unhex(t, "0d0a0d0a 000d0a51 5549540a 20 11 000c c0000207 c6336401 031f 0801"), ""},
		{"LOCAL of a family that nobody knows", testkit.Unhex(t, "0d0a0d0a 000d0a51 5549540a 20 7f 0003 010203"), ""},
		{"UNSPEC", testkit.Unhex(t, "0d0a0d0a 000d0a51 5549540a 21 00 0000"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want netip.AddrPort
			if tt.want != "" {
				want = addrPort(tt.want)
			}
			got, n, err := Parse(append(bytes.Clone(tt.b), "rest"...))
			if got != want || n != len(tt.b) || err != nil {
				t.Errorf("Parse: %v, %d octets, %v; want %v and %d octets", got, n, err, want, len(tt.b))
			}
			for i := range tt.b {
				if got, n, err := Parse(tt.b[:i]); got.IsValid() || n != 0 || err != nil {
					t.Fatalf("of %d octets: %v, %d, %v; more are needed", i, got, n, err)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	with := func(at int, b ...byte) []byte {
		h := testkit.Unhex(t, header4)
		copy(h[at:], b)
		return h
	}
	tlvs := func(s string) []byte {
		h := append(testkit.Unhex(t, header4), testkit.Unhex(t, s)...)
		binary.BigEndian.PutUint16(h[14:], uint16(len(h)-16))
		return h
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want string // in the error
	}{
		{"a Call", testkit.Unhex(t, "80000028 00000001"), ErrMissing.Error()},
		{"one octet of a Call", []byte{0x80}, ErrMissing.Error()},
		{"text", []byte("PROXIES "), ErrMissing.Error()},
		{"version 1", []byte("PROXY TCP4 192.0.2.7 198.51.100.1 799 2049\r\n"), ErrVersion1.Error()},
		{"version 3", with(12, 0x31), "0x31"},
		{"a third command", with(12, 0x22), "0x22"},
		{"UDP", with(13, 0x12), "not TCP"},
		{"a Unix socket", with(13, 0x31), "not TCP"},
		{"IPv6 in 12 octets", with(13, 0x21), "too few for its addresses"},
		{"11 octets", with(14, 0, 11), "too few for its addresses"},
		{"4081 octets, before they are there", with(14, 0x0f, 0xf1), "4097 octets"},
		{"any address", with(16, 0, 0, 0, 0), "0.0.0.0"},
		{"multicast", with(16, 224, 0, 0, 1), "224.0.0.1"},
		{"broadcast", with(16, 255, 255, 255, 255), "255.255.255.255"},
		{"half a TLV", tlvs("04 00"), "2 octets are left"},
		{"a TLV beyond the end", tlvs("04 0003 0000"), "3 octets where 2"},
		{"a short checksum", tlvs("03 0003 000000"), "checksum has 3"},
		{"a wrong checksum", tlvs("03 0004 01020304"), "should be"},
		{"TLS of four octets", tlvs("20 0004 00000000"), "describe TLS"},
		{"a TLV beyond the end of TLS", tlvs("20 0008 0000000000 210001"), "1 octets where 0"},
	} {
		if got, n, err := Parse(tt.b); err == nil || !strings.Contains(err.Error(), tt.want) || n != 0 || got.IsValid() {
			t.Errorf("%s: %v, %d, %v; want an error with %q", tt.name, got, n, err, tt.want)
		}
	}
	if _, _, err := Parse([]byte("PROXY ")); !errors.Is(err, ErrVersion1) {
		t.Errorf("six octets of version 1: %v", err)
	}
	if _, _, err := Parse([]byte("PROXY")); err != nil {
		t.Errorf("five octets of version 1: %v", err)
	}
}

// summed is header4 with other TLVs and a checksum, which it computes in another way than Parse.
func summed(t testing.TB) []byte {
	h := append(testkit.Unhex(t, header4), testkit.Unhex(t, "04 0002 0000  03 0004 00000000  05 0001 41")...)
	binary.BigEndian.PutUint16(h[14:], uint16(len(h)-16))
	sum := crc32.Checksum(h, crc32.MakeTable(crc32.Castagnoli))
	binary.BigEndian.PutUint32(h[len(h)-8:], sum)
	return h
}

func TestChecksum(t *testing.T) {
	h := summed(t)
	if got, n, err := Parse(h); got != addrPort("192.0.2.7:799") || n != len(h) || err != nil {
		t.Fatalf("Parse: %v, %d, %v", got, n, err)
	}
	for i := 16; i < len(h); i++ {
		bad := bytes.Clone(h)
		bad[i] ^= 0x10
		if got, _, err := Parse(bad); err == nil {
			// The TLV of the checksum itself is another one then, and nothing checks the header.
			if i != len(h)-11 {
				t.Errorf("octet %d changed: %v", i, got)
			}
		}
	}
	twice := append(bytes.Clone(h), h[len(h)-11:len(h)-4]...)
	binary.BigEndian.PutUint16(twice[14:], uint16(len(twice)-16))
	if _, _, err := Parse(twice); err == nil {
		t.Error("a header with two checksums is accepted")
	}
}

func TestAppend(t *testing.T) {
	for _, tt := range []struct{ client, local, want string }{
		{"192.0.2.7:799", "198.51.100.1:2049", "192.0.2.7:799"},
		{"[2001:db8::7]:799", "[2001:db8::1]:2049", "[2001:db8::7]:799"},
		{"192.0.2.7:799", "[2001:db8::1]:2049", "192.0.2.7:799"},
		{"[2001:db8::7]:0", "198.51.100.1:2049", "[2001:db8::7]:0"},
		{"[fe80::7%1]:9", "[fe80::1%1]:2049", "[fe80::7]:9"},
	} {
		b := AppendClient([]byte("before"), addrPort(tt.client), addrPort(tt.local))[6:]
		if got, n, err := Parse(b); got != addrPort(tt.want) || n != len(b) || err != nil {
			t.Errorf("%s at %s: %v, %d of %d octets, %v", tt.client, tt.local, got, n, len(b), err)
		}
	}
	if got, want := AppendClient(nil, addrPort("192.0.2.7:799"), addrPort("198.51.100.1:2049")), testkit.Unhex(t, header4); !bytes.Equal(got, want) {
		t.Errorf("AppendClient: %x, want %x", got, want)
	}
	for _, b := range [][]byte{AppendLocal(nil), AppendClient(nil, netip.AddrPort{}, addrPort("192.0.2.1:1"))} {
		if got, n, err := Parse(b); got.IsValid() || n != len(b) || err != nil {
			t.Errorf("LOCAL: %v, %d of %d octets, %v", got, n, len(b), err)
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	h := summed(t)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = Parse(h) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParse checks that Parse says the same of a header, whatever follows it and however it is cut.
func FuzzParse(f *testing.F) {
	f.Add(testkit.Unhex(f, header4))
	f.Add(testkit.Unhex(f, header6))
	f.Add(summed(f))
	f.Add(AppendLocal(nil))
	f.Add([]byte("PROXY TCP4 192.0.2.7 198.51.100.1 799 2049\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		client, n, err := Parse(b)
		switch {
		case n > len(b) || n > MaxLen, err != nil && n != 0, client.IsValid() && n == 0:
			t.Fatalf("Parse: %v, %d of %d octets, %v", client, n, len(b), err)
		case n == 0 && err == nil && len(b) >= MaxLen:
			t.Fatal("Parse wants more than MaxLen octets")
		}
		for i := range len(b) {
			c, k, e := Parse(b[:i])
			if e != nil && err == nil || k != 0 && (k != n || c != client) {
				t.Fatalf("of %d octets: %v, %d, %v; of all: %v, %d, %v", i, c, k, e, client, n, err)
			}
		}
		if client.IsValid() {
			again, _, err := Parse(AppendClient(nil, client, addrPort("198.51.100.1:2049")))
			if err != nil || again != client {
				t.Fatalf("%v becomes %v, %v", client, again, err)
			}
		}
	})
}
