package crowd

import (
	"encoding/binary"
	"net/netip"
)

// A Host is what the bridge counts as one client: all connections from one IPv4 address, or from
// one IPv6 /64, because a client that has one address of a /64 can have them all. It is a number and
// not a [netip.Addr] because the bridge keeps several maps of hosts: a number takes a third of
// the memory.
//
// The number of an IPv6 host is the upper half of its addresses. The other numbers are those of
// IPv6 multicast, which is never the address of a peer.
type Host uint64

const (
	ipv4   Host = 0xffffffff << 32 // of IPv4 hosts, whose address is in the low half
	noHost Host = 0xfffffffe << 32 // of the zero Addr, which tests use
)

// HostOf returns the host of a.
func HostOf(a netip.Addr) Host {
	switch a = a.Unmap(); {
	case a.Is4():
		b := a.As4()
		return ipv4 | Host(binary.BigEndian.Uint32(b[:]))
	case a.Is6():
		b := a.As16()
		return Host(binary.BigEndian.Uint64(b[:8]))
	}
	return noHost
}

// Addr returns the address by which h goes: an IPv4 address, or an IPv6 address whose low half is
// cleared.
func (h Host) Addr() netip.Addr {
	switch {
	case h == noHost:
		return netip.Addr{}
	case h >= ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(h))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(h))
	return netip.AddrFrom16(b)
}
