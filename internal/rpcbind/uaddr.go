package rpcbind

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxUaddr is the longest universal address: an IPv6 one of 45 octets and .255.255.
const maxUaddr = 45 + 8

// uaddr formats a as a universal address: h1.h2.h3.h4.p1.p2 or x1:x2:...:x8.p1.p2. The
// port is in network order, each octet a decimal number. RFC 5665 Sections 5.2.3.3 and
// 5.2.3.4.
func uaddr(a netip.AddrPort) []byte {
	b := a.Addr().WithZone("").AppendTo(make([]byte, 0, maxUaddr))
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(a.Port()>>8), 10)
	b = append(b, '.')
	return strconv.AppendUint(b, uint64(a.Port()&0xff), 10)
}

// parseUaddr parses a universal address.
func parseUaddr(b []byte) (netip.AddrPort, bool) {
	if len(b) > maxUaddr {
		return netip.AddrPort{}, false
	}
	var port uint16
	for shift := 0; shift <= 8; shift += 8 {
		dot := bytes.LastIndexByte(b, '.')
		if dot < 0 {
			return netip.AddrPort{}, false
		}
		n, err := strconv.ParseUint(string(b[dot+1:]), 10, 8)
		if err != nil {
			return netip.AddrPort{}, false
		}
		port |= uint16(n) << shift
		b = b[:dot]
	}
	a, err := netip.ParseAddr(string(b))
	if err != nil || a.Zone() != "" {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a, port), true
}

// A transport specific address is a sockaddr with the family in this host's byte order:
// struct sockaddr_in, 16 octets, or sockaddr_in6, 28.
const (
	sockaddrLen  = 16
	sockaddr6Len = 28
)

// taddr encodes a as a sockaddr.
func taddr(a netip.AddrPort) []byte {
	ip := a.Addr()
	if ip.Is4() {
		b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
		b = binary.BigEndian.AppendUint16(b, a.Port())
		b = append(b, ip.AsSlice()...)
		return append(b, make([]byte, 8)...)
	}
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	b = append(b, make([]byte, 4)...) // flow
	b = append(b, ip.AsSlice()...)
	return append(b, make([]byte, 4)...) // scope
}

// parseTaddr decodes a sockaddr.
func parseTaddr(b []byte) (netip.AddrPort, bool) {
	if len(b) < 4 {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		if len(b) >= sockaddrLen {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), true
		}
	case unix.AF_INET6:
		if len(b) >= sockaddr6Len {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port), true
		}
	}
	return netip.AddrPort{}, false
}
