package capture

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// A builder makes captures packet by packet.
type builder struct {
	link  uint32
	wrap  func(ip []byte, v6 bool) []byte // the link's header before an IP packet
	snap  int                             // snap length; 0 for none
	at    time.Time
	packs []pack
}

type pack struct {
	data   []byte
	length int
	at     time.Time
}

func newBuilder() *builder {
	return &builder{link: linkRaw, wrap: func(ip []byte, _ bool) []byte { return ip }, at: time.Unix(1700000000, 123456000)}
}

func (b *builder) frame(data []byte) {
	n := len(data)
	if b.snap > 0 {
		data = data[:min(n, b.snap)]
	}
	b.at = b.at.Add(time.Millisecond)
	b.packs = append(b.packs, pack{data, n, b.at})
}

// A flow is one direction of a TCP connection.
type flow struct {
	from, to netip.AddrPort
	seq      uint32
}

var (
	clientV4 = netip.MustParseAddrPort("192.0.2.1:700")
	serverV4 = netip.MustParseAddrPort("192.0.2.2:2049")
	clientV6 = netip.MustParseAddrPort("[2001:db8::1]:700")
	serverV6 = netip.MustParseAddrPort("[2001:db8::2]:2049")
)

const (
	flagFIN = 1
	flagSYN = 2
	flagACK = 16
)

// send adds a segment and moves the flow on.
func (b *builder) send(f *flow, flags byte, payload []byte) {
	b.segment(f, f.seq, flags, payload)
	f.seq += uint32(len(payload))
	if flags&flagSYN != 0 {
		f.seq++
	}
}

// segment adds a segment at a sequence number.
func (b *builder) segment(f *flow, seq uint32, flags byte, payload []byte) {
	tcp := binary.BigEndian.AppendUint16(nil, f.from.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, f.to.Port())
	tcp = binary.BigEndian.AppendUint32(tcp, seq)
	tcp = append(tcp, 0, 0, 0, 0, 0x60, flags, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0) // 4 octets of options
	b.ip(f, 6, append(tcp, payload...))
}

func (b *builder) ip(f *flow, proto byte, payload []byte) {
	var p []byte
	if f.from.Addr().Is4() {
		p = []byte{0x45, 0}
		p = binary.BigEndian.AppendUint16(p, uint16(20+len(payload)))
		p = append(p, 0, 0, 0, 0, 64, proto, 0, 0)
	} else {
		p = []byte{0x60, 0, 0, 0}
		p = binary.BigEndian.AppendUint16(p, uint16(len(payload)))
		p = append(p, proto, 64)
	}
	p = append(p, f.from.Addr().AsSlice()...)
	p = append(p, f.to.Addr().AsSlice()...)
	b.frame(b.wrap(append(p, payload...), f.from.Addr().Is6()))
}

// handshake opens a connection.
func (b *builder) handshake(v6 bool) (client, server *flow) {
	client, server = &flow{clientV4, serverV4, 0xfffffff0}, &flow{serverV4, clientV4, 77}
	if v6 {
		client.from, client.to, server.from, server.to = clientV6, serverV6, serverV6, clientV6
	}
	b.send(client, flagSYN, nil)
	b.send(server, flagSYN|flagACK, nil)
	b.send(client, flagACK, nil)
	return client, server
}

// pcap returns the capture in the format of pcap.
func (b *builder) pcap(order binary.AppendByteOrder, nano bool) []byte {
	magic := uint32(magicMicro)
	if nano {
		magic = magicNano
	}
	out := order.AppendUint32(nil, magic)
	out = order.AppendUint16(out, 2)
	out = order.AppendUint16(out, 4)
	out = append(out, 0, 0, 0, 0, 0, 0, 0, 0)
	out = order.AppendUint32(out, 262144)
	out = order.AppendUint32(out, b.link)
	for _, p := range b.packs {
		ns := p.at.Nanosecond()
		if !nano {
			ns /= 1000
		}
		out = order.AppendUint32(out, uint32(p.at.Unix()))
		out = order.AppendUint32(out, uint32(ns))
		out = order.AppendUint32(out, uint32(len(p.data)))
		out = order.AppendUint32(out, uint32(p.length))
		out = append(out, p.data...)
	}
	return out
}

// block appends a block of pcapng.
func block(out []byte, order binary.AppendByteOrder, kind uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	out = order.AppendUint32(out, kind)
	out = order.AppendUint32(out, uint32(len(body)+12))
	out = append(out, body...)
	return order.AppendUint32(out, uint32(len(body)+12))
}

// section appends a Section Header Block and an Interface Description Block with
// timestamps of this resolution; 0 for the default.
func (b *builder) section(out []byte, order binary.AppendByteOrder, resolution byte) []byte {
	shb := order.AppendUint32(nil, magicOrder)
	shb = order.AppendUint16(order.AppendUint16(shb, 1), 0) // the version
	shb = append(shb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	out = block(out, order, magicBlocks, shb)
	idb := order.AppendUint16(nil, uint16(b.link))
	idb = order.AppendUint32(append(idb, 0, 0), uint32(b.snap))
	idb = order.AppendUint16(idb, 2) // if_name
	idb = order.AppendUint16(idb, 3)
	idb = append(idb, "eth\x00"...)
	if resolution != 0 {
		idb = order.AppendUint16(idb, 9)
		idb = order.AppendUint16(idb, 1)
		idb = append(idb, resolution, 0, 0, 0)
	}
	return block(out, order, blockInterface, append(idb, 0, 0, 0, 0))
}

// pcapng returns the capture with packets in blocks of this kind.
func (b *builder) pcapng(order binary.AppendByteOrder, kind uint32, resolution byte) []byte {
	out := b.section(nil, order, resolution)
	out = block(out, order, 5, make([]byte, 12)) // Interface Statistics, which Read skips
	perSec := perSecond(resolution)
	if resolution == 0 {
		perSec = 1e6
	}
	for _, p := range b.packs {
		var body []byte
		at := uint64(p.at.Unix())*perSec + uint64(p.at.Nanosecond())*perSec/1e9
		switch kind {
		case blockSimple:
			body = order.AppendUint32(body, uint32(p.length))
		case blockPacket:
			body = order.AppendUint16(body, 0)
			body = order.AppendUint16(body, 7) // drops
		default:
			body = order.AppendUint32(body, 0)
		}
		if kind != blockSimple {
			body = order.AppendUint32(body, uint32(at>>32))
			body = order.AppendUint32(body, uint32(at))
			body = order.AppendUint32(body, uint32(len(p.data)))
			body = order.AppendUint32(body, uint32(p.length))
		}
		out = block(out, order, kind, append(body, p.data...))
	}
	return out
}

// call returns a Call with n octets of arguments.
func call(xid uint32, n int) []byte {
	b := binary.BigEndian.AppendUint32(nil, xid)
	for _, w := range []uint32{0, 2, 100003, 3, 7, 0, 0, 0, 0} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	for i := range n {
		b = append(b, byte(i)|1)
	}
	return b
}

// reply returns a Reply with n octets of results.
func reply(xid uint32, n int) []byte {
	b := binary.BigEndian.AppendUint32(nil, xid)
	for _, w := range []uint32{1, 0, 0, 0, 0} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	for i := range n {
		b = append(b, byte(i)|1)
	}
	return b
}

func wantMessages(t *testing.T, got []Message, want ...[]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d: %+v", len(got), len(want), got)
	}
	for i := range got {
		if string(got[i].Data) != string(want[i]) || got[i].Missing != 0 || got[i].Wrong != "" {
			t.Errorf("message %d is %.60x, %d octets (%d missing, %q), want %.60x, %d octets",
				i, got[i].Data, len(got[i].Data), got[i].Missing, got[i].Wrong, want[i], len(want[i]))
		}
	}
}

// Block types of pcapng.
const (
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
)

// pcapHeader is the length of the header of pcap.
const pcapHeader = 24

// perSecond returns the number of units in a second: 10 to the power v, or, when the high
// bit of v is set, 2 to the power of the other bits. It returns 0 when that overflows.
func perSecond(v byte) uint64 {
	n := uint64(1)
	if v&0x80 != 0 {
		if v &= 0x7f; v > 62 {
			return 0
		}
		return n << v
	}
	if v > 18 {
		return 0
	}
	for ; v > 0; v-- {
		n *= 10
	}
	return n
}
