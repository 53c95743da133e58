package capture

import (
	"encoding/binary"
	"net/netip"
)

// LINKTYPE_ values, from the registry of tcpdump.org.
const (
	linkNull     = 0   // BSD loopback: address family in the order of the host that captured
	linkEthernet = 1   //
	linkRawOld   = 12  // raw IP, as some systems number it
	linkRawBSD   = 14  //
	linkRaw      = 101 // IPv4 or IPv6
	linkLoop     = 108 // OpenBSD loopback: address family, big-endian
	linkSLL      = 113 // Linux cooked
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276 // Linux cooked, version 2
)

// A tcpSegment is a TCP segment, in the file.
type tcpSegment struct {
	From, To      netip.AddrPort
	Sequence      uint32
	SYN, FIN, RST bool
	ACK           bool
	Payload       []byte // the captured part of it
	Length        int64  // octets of the whole payload; len(Payload) or more
}

// A Skip is the reason why Read skipped a packet.
type Skip uint8

const (
	notSkipped   Skip = iota
	skipLink          // an unknown link type
	skipNotIP         // ARP, say
	skipNotTCP        // UDP, say
	skipFragment      // an IP fragment: Read does not reassemble them
	skipShort         // the packet ends inside a header: cut by the snap length, or malformed
	skips
)

var skipText = [skips]string{"", "unknown link type", "not IP", "not TCP", "IP fragment", "cut inside its headers"}

func (s Skip) String() string {
	if s < skips {
		return skipText[s]
	}
	return "unknown"
}

// tcp fills s with the TCP segment of a packet. It returns notSkipped when there is one.
func (p *packet) tcp(s *tcpSegment) Skip {
	b := p.Data
	need := func(n int) bool { return len(b) >= n }
	ethertype := func(t uint16) Skip {
		// VLAN tags, of which there may be several.
		for t == 0x8100 || t == 0x88a8 || t == 0x9100 {
			if !need(4) {
				return skipShort
			}
			t, b = binary.BigEndian.Uint16(b[2:]), b[4:]
		}
		if t != 0x0800 && t != 0x86dd {
			return skipNotIP
		}
		return p.ip(b, s)
	}
	switch p.Link {
	case linkEthernet:
		if !need(14) {
			return skipShort
		}
		t := binary.BigEndian.Uint16(b[12:])
		b = b[14:]
		return ethertype(t)
	case linkSLL: // type, address type, its length, address 8, protocol
		if !need(16) {
			return skipShort
		}
		t := binary.BigEndian.Uint16(b[14:])
		b = b[16:]
		return ethertype(t)
	case linkSLL2: // protocol, reserved 2, interface 4, address type 2, type, length, address 8
		if !need(20) {
			return skipShort
		}
		t := binary.BigEndian.Uint16(b)
		b = b[20:]
		return ethertype(t)
	case linkNull, linkLoop:
		// Each system has its own numbers of address families. The version of IP tells the
		// family, too.
		if !need(4) {
			return skipShort
		}
		return p.ip(b[4:], s)
	case linkRaw, linkRawOld, linkRawBSD, linkIPv4, linkIPv6:
		return p.ip(b, s)
	}
	return skipLink
}

// IP protocol numbers.
const (
	protoHopByHop = 0
	protoTCP      = 6
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoOptions  = 60
	protoMobility = 135
)

// ip reads an IP packet. It may end before the frame: Ethernet pads short packets.
func (p *packet) ip(b []byte, s *tcpSegment) Skip {
	if len(b) < 1 {
		return skipShort
	}
	// The length of b before the capture cut the packet.
	whole := int64(p.Length) - int64(len(p.Data)-len(b))
	switch b[0] >> 4 {
	case 4:
		return ipv4(b, whole, s)
	case 6:
		return ipv6(b, whole, s)
	}
	return skipNotIP
}

func ipv4(b []byte, whole int64, s *tcpSegment) Skip {
	head := int(b[0]&15) * 4
	if len(b) < 20 || head < 20 || len(b) < head {
		return skipShort
	}
	length := int64(binary.BigEndian.Uint16(b[2:]))
	if length == 0 {
		length = whole // more than 64 KiB, before segmentation offload
	}
	if length = min(length, whole); length < int64(head) {
		return skipShort
	}
	if b[9] != protoTCP {
		return skipNotTCP
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or not the first
		return skipFragment
	}
	s.From = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:16])), 0)
	s.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), 0)
	return tcp(b[head:min(int64(len(b)), length)], length-int64(head), s)
}

func ipv6(b []byte, whole int64, s *tcpSegment) Skip {
	if len(b) < 40 {
		return skipShort
	}
	length := int64(binary.BigEndian.Uint16(b[4:]))
	if length == 0 {
		length = whole - 40 // a jumbogram, RFC 2675, or segmentation offload
	}
	if length = min(length, whole-40); length < 0 {
		return skipShort
	}
	s.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), 0)
	s.To = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:40])), 0)
	next := b[6]
	b = b[40:min(int64(len(b)), 40+length)]
	for {
		n := 0 // octets of the extension header
		switch next {
		case protoTCP:
			return tcp(b, length, s)
		case protoFragment:
			if len(b) < 8 {
				return skipShort
			}
			// An atomic fragment is a whole packet: RFC 6946.
			if binary.BigEndian.Uint16(b[2:])&0xfff9 != 0 {
				return skipFragment
			}
			n = 8
		case protoHopByHop, protoRouting, protoOptions, protoMobility:
			if len(b) < 2 {
				return skipShort
			}
			n = 8 + 8*int(b[1])
		case protoAH:
			if len(b) < 2 {
				return skipShort
			}
			n = 8 + 4*int(b[1])
		default:
			return skipNotTCP
		}
		if len(b) < n {
			return skipShort
		}
		next, b, length = b[0], b[n:], length-int64(n)
	}
}

// tcp reads a TCP segment of length octets, of which b was captured.
func tcp(b []byte, length int64, s *tcpSegment) Skip {
	if len(b) < 20 {
		return skipShort
	}
	head := int(b[12]>>4) * 4
	if head < 20 || length < int64(head) || len(b) < head {
		return skipShort
	}
	s.From = netip.AddrPortFrom(s.From.Addr(), binary.BigEndian.Uint16(b))
	s.To = netip.AddrPortFrom(s.To.Addr(), binary.BigEndian.Uint16(b[2:]))
	s.Sequence = binary.BigEndian.Uint32(b[4:])
	s.FIN, s.SYN, s.RST, s.ACK = b[13]&1 != 0, b[13]&2 != 0, b[13]&4 != 0, b[13]&16 != 0
	s.Payload, s.Length = b[head:], length-int64(head)
	return notSkipped
}
