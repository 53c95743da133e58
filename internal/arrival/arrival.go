// Package arrival tells to which address of this host a datagram was sent, sends the answer from there, and bounds answers.
package arrival

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Want asks the kernel for the destination address of each datagram: ip(7), ipv6(7).
// A socket for both families has both options.
func Want(network, _ string, c syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		if network == "udp6" && err == nil {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
	}
	if e := c.Control(set); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("asking the kernel for the destination of datagrams: %w", err)
	}
	return nil
}

// An Arrival is the address of this host that a datagram was sent to.
type Arrival struct {
	Local     netip.Addr // unmapped; invalid if the kernel did not tell
	link      uint32     // index of the interface, for link-local addresses
	Group     bool       // sent to a broadcast or multicast address
	linkLocal bool
}

// Parse reads the kernel's control messages. On a socket for both families an IPv4
// datagram has both; Parse uses in_pktinfo, which also has the destination.
//
//	in_pktinfo: interface 4, local address 4, destination 4
//	in6_pktinfo: destination 16, interface 4
func Parse(oob []byte) (a Arrival) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return a
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			local, destination := [4]byte(m.Data[4:8]), [4]byte(m.Data[8:12])
			return Arrival{Local: netip.AddrFrom4(local), Group: local != destination}
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			a.Local = netip.AddrFrom16([16]byte(m.Data)).Unmap()
			a.Group = a.Local.IsMulticast()
			a.linkLocal = a.Local.IsLinkLocalUnicast()
			a.link = binary.NativeEndian.Uint32(m.Data[16:])
		}
	}
	return a
}

// Control returns the control message that makes the kernel send a Reply from this
// address.
func (a *Arrival) Control() []byte {
	if a.Local.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.Local.As4()})
	}
	info := unix.Inet6Pktinfo{Addr: a.Local.As16()}
	if a.linkLocal {
		info.Ifindex = a.link
	}
	return unix.PktInfo6(&info)
}
