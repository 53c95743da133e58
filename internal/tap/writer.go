package tap

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// The capture as TCP
//
// Each message becomes a record of RPC over TCP, RFC 5531 Section 11, in segments of a TCP connection
// with the addresses and ports of the real one. A connection that the capture sees for the first time
// gets a handshake. Sequence numbers count the octets of the messages in the capture, and each segment
// acknowledges all that came before, so that nothing seems lost or repeated. Some ports are replaced:
// ports.go.
//
// A message of which not all octets are captured is one packet that is longer than an IP packet can be.
// Its length in the IP header is 0, as in captures that were taken before segmentation offload, and the
// packet has its real length and the captured length beside it.

const (
	mostSegment = 60000   // octets of a message in one packet
	mostStreams = 1 << 16 // connections that a capture knows
	windowScale = 14
	mostHeaders = 14 + 40 + 20 + 4 // octets before a message, the record mark included
	nfsPort     = 2049
)

// A writer writes messages as packets of pcapng.
type writer struct {
	ng      *pcapgo.NgWriter
	buf     gopacket.SerializeBuffer
	streams map[uint64]*stream // by the ID of the connection
	used    map[pair]bool      // by these streams
	packets [2]uint64          // by interface

	eth layers.Ethernet
	ip4 layers.IPv4
	ip6 layers.IPv6
	tcp layers.TCP

	missed *uint64 // for the next packet
	record []byte  // a record mark and the octets of a message
}

// A stream is a connection of the proxy in the capture.
type stream struct {
	pair
	sent, got uint32 // the next sequence numbers: of what the proxy sends, and of what the peer sends
}

// newWriter writes the beginning of the file to w.
func newWriter(w io.Writer, application, comment string, snap uint32) (*writer, error) {
	link := func(name, description string) pcapgo.NgInterface {
		return pcapgo.NgInterface{Name: name, Description: description, LinkType: layers.LinkTypeEthernet, SnapLength: snap, TimestampResolution: 9}
	}
	ng, err := pcapgo.NewNgWriterInterface(w, link("clients", "messages between clients and rdmabridge, re-framed as RPC over TCP"), pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{Application: application, Comment: comment},
	})
	if err != nil {
		return nil, err
	}
	if _, err := ng.AddInterface(link("upstreams", "messages between rdmabridge and upstreams, re-framed as RPC over TCP")); err != nil {
		return nil, err
	}
	return &writer{ng: ng, buf: gopacket.NewSerializeBufferExpectedSize(128, mostSegment), streams: make(map[uint64]*stream), used: make(map[pair]bool)}, nil
}

// stream returns the stream of c, with a handshake if it is new.
func (w *writer) stream(c *observe.TapConn, at time.Time) (*stream, error) {
	if s := w.streams[c.ID]; s != nil {
		return s, nil
	}
	if len(w.streams) >= mostStreams {
		w.evict()
	}
	s := &stream{pair: w.ends(c), sent: initial(2 * c.ID), got: initial(2*c.ID + 1)}
	w.streams[c.ID], w.used[s.pair] = s, true
	comments := []string{connectionComment(c)}
	out := c.Leg == observe.TapUpstreams // the proxy has opened the connection
	for i, flags := range []string{"S", "SA", "A"} {
		if err := w.packet(c, s, out == (i != 1), at, flags, nil, 0, comments); err != nil {
			return nil, err
		}
		comments = nil
	}
	return s, nil
}

// initial returns an initial sequence number. A connection must not seem to repeat another one that had its
// addresses.
func initial(n uint64) uint32 { return uint32(n) * 2654435761 }

// address returns a without what TCP has no place for. An unknown address is the unspecified one.
func address(a netip.AddrPort) netip.AddrPort {
	ip := a.Addr().Unmap().WithZone("")
	if !ip.IsValid() {
		ip = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(ip, a.Port())
}

// mapped returns a as IPv6.
func mapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}

// evict forgets a stream. It gets another handshake if it is used again.
func (w *writer) evict() {
	for id := range w.streams {
		w.forget(id)
		return
	}
}

func (w *writer) forget(id uint64) {
	delete(w.used, w.streams[id].pair)
	delete(w.streams, id)
}

// message writes a message. Its first packet has the comments, and says how many messages before it the
// capture has missed.
func (w *writer) message(e *event, missed uint64) error {
	s, err := w.stream(e.conn, e.at)
	if err != nil {
		return err
	}
	comments := e.comments
	if missed > 0 {
		comments = append(comments, fmt.Sprintf("%d messages before this one are not in the capture: they came faster than they were written", missed))
		w.missed = &missed
	}
	r := binary.BigEndian.AppendUint32(w.record[:0], 1<<31|uint32(e.length))
	r = append(r, e.octets...)
	if cap(r) <= 1<<20 {
		w.record = r
	}
	if len(e.octets) < e.length {
		return w.packet(e.conn, s, e.out, e.at, "PA", r, 4+e.length, comments)
	}
	for len(r) > 0 {
		b, flags := r, "PA"
		if len(b) > mostSegment {
			b, flags = b[:mostSegment], "A"
		}
		if err := w.packet(e.conn, s, e.out, e.at, flags, b, len(b), comments); err != nil {
			return err
		}
		r, comments = r[len(b):], nil
	}
	return nil
}

// ended writes the end of a connection that the capture knows.
func (w *writer) ended(e *event) error {
	s := w.streams[e.conn.ID]
	if s == nil {
		return nil
	}
	w.forget(e.conn.ID)
	text := "connection ended"
	if e.text != "" {
		text += ": " + e.text
	}
	if err := w.packet(e.conn, s, false, e.at, "FA", nil, 0, []string{text}); err != nil {
		return err
	}
	if err := w.packet(e.conn, s, true, e.at, "FA", nil, 0, nil); err != nil {
		return err
	}
	return w.packet(e.conn, s, false, e.at, "A", nil, 0, nil)
}

// synOptions are the options of a handshake: windows that no message fills, and long segments.
var synOptions = []layers.TCPOption{
	{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{0xff, 0x00}},
	{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{windowScale}},
}

var serverMAC, clientMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}

// packet writes one TCP segment of length octets, of which b is captured.
func (w *writer) packet(c *observe.TapConn, s *stream, out bool, at time.Time, flags string, b []byte, length int, comments []string) error {
	from, to, seq, ack := s.peer, s.local, &s.got, &s.sent
	w.eth = layers.Ethernet{SrcMAC: clientMAC, DstMAC: serverMAC, EthernetType: layers.EthernetTypeIPv4}
	if out {
		from, to, seq, ack = to, from, ack, seq
		w.eth.SrcMAC, w.eth.DstMAC = serverMAC, clientMAC
	}
	t := &w.tcp
	*t = layers.TCP{SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()), Seq: *seq, Window: 65535, DataOffset: 5, Options: t.Options[:0]}
	for _, f := range flags {
		switch f {
		case 'S':
			t.SYN = true
			t.Options = append(t.Options, synOptions...)
		case 'A':
			t.ACK, t.Ack = true, *ack
		case 'P':
			t.PSH = true
		case 'F':
			t.FIN = true
		}
	}
	cut := len(b) < length
	o := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: !cut}
	var network gopacket.SerializableLayer
	if from.Addr().Is4() {
		w.ip4 = layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(), Flags: layers.IPv4DontFragment}
		network = &w.ip4
		_ = t.SetNetworkLayerForChecksum(&w.ip4)
	} else {
		w.eth.EthernetType = layers.EthernetTypeIPv6
		w.ip6 = layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
		network = &w.ip6
		_ = t.SetNetworkLayerForChecksum(&w.ip6)
	}
	if cut {
		o.FixLengths = false // the length in the IP header is 0
	}
	if err := gopacket.SerializeLayers(w.buf, o, &w.eth, network, t, gopacket.Payload(b)); err != nil {
		return err
	}
	data := w.buf.Bytes()
	n := uint32(length)
	if t.SYN || t.FIN {
		n++
	}
	*seq += n
	w.packets[c.Leg]++
	options := pcapgo.NgPacketOptions{Comments: comments, DropCount: w.missed}
	w.missed = nil
	return w.ng.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: at, CaptureLength: len(data), Length: len(data) + length - len(b), InterfaceIndex: int(c.Leg),
	}, data, options)
}

// statistics writes how many messages the capture has missed on each leg.
func (w *writer) statistics(from, to time.Time, dropped [2]uint64) error {
	for i, n := range dropped {
		err := w.ng.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{
			LastUpdate: to, StartTime: from, EndTime: to, PacketsReceived: w.packets[i] + n, PacketsDropped: n,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
