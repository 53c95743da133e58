package capture

import (
	"encoding/binary"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func ethertype(v6 bool) uint16 {
	if v6 {
		return 0x86dd
	}
	return 0x0800
}

// Every link type, with both versions of IP.
func TestLinks(t *testing.T) {
	for _, tc := range []struct {
		name string
		link uint32
		wrap func(ip []byte, v6 bool) []byte
	}{
		{"Ethernet, padded", linkEthernet, func(ip []byte, v6 bool) []byte {
			b := append(binary.BigEndian.AppendUint16(make([]byte, 12), ethertype(v6)), ip...)
			for len(b) < 60 {
				b = append(b, 0xee)
			}
			return b
		}},
		{"Ethernet, two VLAN tags", linkEthernet, func(ip []byte, v6 bool) []byte {
			b := append(make([]byte, 12), 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2)
			return append(binary.BigEndian.AppendUint16(b, ethertype(v6)), ip...)
		}},
		{"SLL", linkSLL, func(ip []byte, v6 bool) []byte {
			return append(binary.BigEndian.AppendUint16(make([]byte, 14), ethertype(v6)), ip...)
		}},
		{"SLL2", linkSLL2, func(ip []byte, v6 bool) []byte {
			return append(append(binary.BigEndian.AppendUint16(nil, ethertype(v6)), make([]byte, 18)...), ip...)
		}},
		{"null", linkNull, func(ip []byte, _ bool) []byte { return append([]byte{2, 0, 0, 0}, ip...) }},
		{"loop", linkLoop, func(ip []byte, _ bool) []byte { return append([]byte{0, 0, 0, 24}, ip...) }},
		{"raw", linkRaw, func(ip []byte, _ bool) []byte { return ip }},
	} {
		for _, v6 := range []bool{false, true} {
			b := newBuilder()
			b.link, b.wrap = tc.link, tc.wrap
			client, server := b.handshake(v6)
			b.send(client, flagACK, testkit.Record(call(1, 8)))
			b.send(server, flagACK, testkit.Record(reply(1, 8)))
			c, all := readMessages(t, b.pcap(binary.LittleEndian, false))
			if c.Skipped[notSkipped] != 5 || len(c.Conns) != 1 {
				t.Errorf("%s, IPv6 %v: skipped %v, %d connections", tc.name, v6, c.Skipped, len(c.Conns))
				continue
			}
			wantMessages(t, all, call(1, 8), reply(1, 8))
		}
	}
}

// Packets without a TCP segment are skipped and counted.
func TestSkipped(t *testing.T) {
	v4 := &flow{from: clientV4, to: serverV4}
	v6 := &flow{from: clientV6, to: serverV6}
	tcp := func() []byte { return append(make([]byte, 12), 0x50, 16, 0, 0, 0, 0, 0, 0) }
	for _, tc := range []struct {
		name  string
		build func(b *builder)
		want  Skip
	}{
		{"UDP", func(b *builder) { b.ip(v4, 17, make([]byte, 8)) }, skipNotTCP},
		{"UDP, IPv6", func(b *builder) { b.ip(v6, 17, make([]byte, 8)) }, skipNotTCP},
		{"IPv5", func(b *builder) { b.frame([]byte{0x50, 0, 0, 0}) }, skipNotIP},
		{"nothing", func(b *builder) { b.frame(nil) }, skipShort},
		{"half an IPv4 header", func(b *builder) { b.frame(append([]byte{0x45}, make([]byte, 18)...)) }, skipShort},
		{"half an IPv6 header", func(b *builder) { b.frame(append([]byte{0x60}, make([]byte, 38)...)) }, skipShort},
		{"half a TCP header", func(b *builder) { b.snap = 30; b.ip(v4, 6, tcp()) }, skipShort},
		{"TCP offset of 60", func(b *builder) {
			p := tcp()
			p[12] = 0xf0
			b.ip(v4, 6, p)
		}, skipShort},
		{"TCP offset of 16", func(b *builder) {
			p := tcp()
			p[12] = 0x40
			b.ip(v4, 6, p)
		}, skipShort},
		{"IPv4 fragment", func(b *builder) {
			b.wrap = func(ip []byte, _ bool) []byte { ip[6] = 0x20; return ip }
			b.ip(v4, 6, tcp())
		}, skipFragment},
		{"IPv6 fragment", func(b *builder) { b.ip(v6, 44, append([]byte{6, 0, 0, 1, 0, 0, 0, 9}, tcp()...)) }, skipFragment},
		{"IPv6 atomic fragment", func(b *builder) { b.ip(v6, 44, append([]byte{6, 0, 0, 0, 0, 0, 0, 9}, tcp()...)) }, notSkipped},
		{"IPv6 options", func(b *builder) {
			p := append([]byte{60, 0, 0, 0, 0, 0, 0, 0}, 6, 1)
			b.ip(v6, 0, append(append(p, make([]byte, 14)...), tcp()...))
		}, notSkipped},
		{"IPv6 options that run out", func(b *builder) { b.ip(v6, 0, []byte{6, 200, 0, 0, 0, 0, 0, 0}) }, skipShort},
		{"IPv6 AH", func(b *builder) { b.ip(v6, 51, append([]byte{6, 4, 0, 0}, append(make([]byte, 20), tcp()...)...)) }, notSkipped},
		{"unknown link", func(b *builder) { b.link = 4242; b.ip(v4, 6, tcp()) }, skipLink},
		{"ARP", func(b *builder) {
			b.link = linkEthernet
			b.frame(append(append(make([]byte, 12), 8, 6), make([]byte, 28)...))
		}, skipNotIP},
		{"half a VLAN tag", func(b *builder) {
			b.link = linkEthernet
			b.frame(append(make([]byte, 12), 0x81, 0, 0))
		}, skipShort},
	} {
		b := newBuilder()
		tc.build(b)
		c, _ := readMessages(t, b.pcap(binary.LittleEndian, false))
		if c.Skipped[tc.want] != 1 {
			t.Errorf("%s: skipped %v, want %q", tc.name, c.Skipped, tc.want)
		}
	}
}

// Packets of segmentation offload have no length in their IP header.
func TestOffload(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		b := newBuilder()
		b.wrap = func(ip []byte, v6 bool) []byte {
			if len(ip) < 1<<16 {
				return ip
			}
			if v6 {
				ip[4], ip[5] = 0, 0
			} else {
				ip[2], ip[3] = 0, 0
			}
			return ip
		}
		client, _ := b.handshake(v6)
		b.send(client, flagACK, testkit.Record(call(1, 100000)))
		_, all := readMessages(t, b.pcap(binary.LittleEndian, false))
		wantMessages(t, all, call(1, 100000))
	}
}
