// Package proxyheader reads and writes the header of the PROXY protocol, version 2, with which a
// proxy says at the beginning of a TCP connection whose connection it passes on. The protocol is
// HAProxy's, described in its doc/proxy-protocol.txt. The package knows octets only: whose header may
// be believed is for its caller to say.
//
// Version 1, the line of text, is recognised and refused. It cannot say how long it is before all of
// it is there, and nothing checks it.
//
// go-proxyproto blocks in a bufio.Reader, allocates the length that the header claims before it has the octets, leaves
// the checksum and TLVs unchecked, and refuses the command PROXY without an address.
package proxyheader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// MaxLen is how many octets a header may have. Headers have 28 or 52 octets, and a few hundred with
// what a proxy may add about the client's TLS; the protocol would allow 65,551.
const MaxLen = 4096

// The layout of a header:
//
//	signature[12] | version, command | family, protocol | length[2] | addresses | TLVs
//
// length counts the addresses and the TLVs.
const (
	signature = "\r\n\r\n\x00\r\nQUIT\n"
	version1  = "PROXY "
	fixedLen  = len(signature) + 4
	addrs4Len = 2*4 + 2*2
	addrs6Len = 2*16 + 2*2
)

const (
	versionLocal = 0x20 // version 2, command LOCAL: a connection of the proxy's own
	versionProxy = 0x21 // version 2, command PROXY

	unspecified = 0x00
	tcp4        = 0x11
	tcp6        = 0x21
)

// TLVs that are looked into.
const (
	tlvCRC32C = 0x03
	tlvTLS    = 0x20

	tlvLen     = 1 + 2 // before the value
	tlsHeadLen = 1 + 4 // client and verify, before the TLVs within
)

// Errors of Parse, beside those of a malformed header.
var (
	// ErrMissing says that the connection does not begin with a header.
	ErrMissing = errors.New("proxyheader: the connection does not begin with a PROXY header")
	// ErrVersion1 says that it begins with a header of version 1.
	ErrVersion1 = errors.New("proxyheader: a PROXY header of version 1; have the proxy send version 2")
)

// Parse reads the header at the beginning of b. n is its length, or 0 if more octets are needed: at
// most MaxLen in all. client is the address and port of the client whose connection the proxy passes
// on. It is the zero AddrPort when the header names none, because the connection is one of the proxy's
// own, for example to find out whether this side is there, or because the proxy does not know.
func Parse(b []byte) (client netip.AddrPort, n int, err error) {
	if err := begins(b); err != nil || len(b) < fixedLen {
		return client, 0, err
	}
	command, family := b[len(signature)], b[len(signature)+1]
	if command != versionLocal && command != versionProxy {
		return client, 0, malformed("version and command are %#02x", command)
	}
	n = fixedLen + int(binary.BigEndian.Uint16(b[len(signature)+2:]))
	if n > MaxLen {
		return client, 0, malformed("it has %d octets, at most %d are accepted", n, MaxLen)
	}
	if len(b) < n {
		return client, 0, nil
	}
	if command == versionLocal || family == unspecified {
		// "The receiver must accept this connection as valid and must use the real connection
		// endpoints and discard the protocol block including the family which is ignored."
		return client, n, nil
	}
	b = b[:n]
	addresses := b[fixedLen:]
	at := fixedLen
	switch {
	case family == tcp4 && len(addresses) >= addrs4Len:
		client = netip.AddrPortFrom(netip.AddrFrom4([4]byte(addresses)), binary.BigEndian.Uint16(addresses[8:]))
		at += addrs4Len
	case family == tcp6 && len(addresses) >= addrs6Len:
		client = netip.AddrPortFrom(netip.AddrFrom16([16]byte(addresses)).Unmap(), binary.BigEndian.Uint16(addresses[32:]))
		at += addrs6Len
	case family == tcp4 || family == tcp6:
		return client, 0, malformed("%d octets are too few for its addresses", len(addresses))
	default:
		return client, 0, malformed("family and protocol are %#02x, which is not TCP", family)
	}
	if a := client.Addr(); a.IsUnspecified() || a.IsMulticast() || a == broadcast {
		return netip.AddrPort{}, 0, malformed("%v is not the address of a client", a)
	}
	if err := checkTLVs(b, at); err != nil {
		return netip.AddrPort{}, 0, err
	}
	return client, n, nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// begins reports why b cannot be the beginning of a header.
func begins(b []byte) error {
	n := min(len(b), len(signature))
	if string(b[:n]) == signature[:n] {
		return nil
	}
	n = min(len(b), len(version1))
	if string(b[:n]) != version1[:n] {
		return ErrMissing
	}
	if n < len(version1) {
		return nil
	}
	return ErrVersion1
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      = make([]byte, crc32.Size)
)

// checkTLVs checks the TLVs of the header b, which begin at the offset at, and the checksum if one of
// them is that.
func checkTLVs(b []byte, at int) error {
	summed := false
	for at < len(b) {
		kind, value, err := tlv(b[at:])
		if err != nil {
			return err
		}
		at += tlvLen
		switch kind {
		case tlvCRC32C:
			if len(value) != crc32.Size || summed {
				return malformed("its checksum has %d octets, or is there twice", len(value))
			}
			summed = true
			if got, want := sumWithout(b, at), binary.BigEndian.Uint32(value); got != want {
				return malformed("its checksum is %#08x and should be %#08x", want, got)
			}
		case tlvTLS:
			if err := checkTLS(value); err != nil {
				return err
			}
		}
		at += len(value)
	}
	return nil
}

// checkTLS checks the TLVs within the one that describes the client's TLS.
func checkTLS(b []byte) error {
	if len(b) < tlsHeadLen {
		return malformed("%d octets are too few to describe TLS", len(b))
	}
	for b = b[tlsHeadLen:]; len(b) > 0; {
		_, value, err := tlv(b)
		if err != nil {
			return err
		}
		b = b[tlvLen+len(value):]
	}
	return nil
}

// tlv returns the first TLV of b.
func tlv(b []byte) (kind byte, value []byte, err error) {
	if len(b) < tlvLen {
		return 0, nil, malformed("%d octets are left where a TLV should begin", len(b))
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	if n > len(b)-tlvLen {
		return 0, nil, malformed("a TLV of %d octets where %d are left", n, len(b)-tlvLen)
	}
	return b[0], b[tlvLen : tlvLen+n], nil
}

// sumWithout returns the CRC32c of b, with zeros in place of the four octets of the checksum at the
// offset at.
func sumWithout(b []byte, at int) uint32 {
	sum := crc32.Update(0, castagnoli, b[:at])
	sum = crc32.Update(sum, castagnoli, zeros)
	return crc32.Update(sum, castagnoli, b[at+crc32.Size:])
}

// AppendClient appends the header of a connection that is passed on for client, which had connected to
// this side at local. If one of the addresses is not known, the header is that of AppendLocal.
func AppendClient(b []byte, client, local netip.AddrPort) []byte {
	c, l := client.Addr().Unmap(), local.Addr().Unmap()
	if !c.IsValid() || !l.IsValid() {
		return AppendLocal(b)
	}
	b = append(append(b, signature...), versionProxy)
	if c.Is4() && l.Is4() {
		b = binary.BigEndian.AppendUint16(append(b, tcp4), addrs4Len)
		b = append(append(b, c.AsSlice()...), l.AsSlice()...)
	} else {
		// Both addresses have one family: an IPv4 address is mapped.
		c16, l16 := c.As16(), l.As16()
		b = binary.BigEndian.AppendUint16(append(b, tcp6), addrs6Len)
		b = append(append(b, c16[:]...), l16[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, client.Port())
	return binary.BigEndian.AppendUint16(b, local.Port())
}

// AppendLocal appends the header of a connection that this side makes for itself.
func AppendLocal(b []byte) []byte {
	return append(append(b, signature...), versionLocal, unspecified, 0, 0)
}

// A malformedError says what is wrong with a header.
type malformedError string

func (e malformedError) Error() string { return "proxyheader: malformed PROXY header: " + string(e) }

func malformed(format string, a ...any) error { return malformedError(fmt.Sprintf(format, a...)) }
