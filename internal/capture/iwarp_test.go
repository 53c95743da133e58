package capture

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/wire"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// A peer is one direction of an iWARP connection.
type peer struct {
	f       *flow
	markers *wire.Markers // nil for none
	msn     uint32
	mulpdu  int
	badCRC  bool
}

func (b *builder) iwarp(flags wire.FrameFlags) (client, server *peer) {
	cf, sf := b.handshake(false)
	client, server = &peer{f: cf, mulpdu: 1 << 15}, &peer{f: sf, mulpdu: 1 << 15}
	private := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{SendSize: 8192, RecvSize: 4096})
	request := wire.Frame{Flags: flags, Revision: 1, Private: private}
	answer := wire.Frame{Reply: true, Flags: flags, Revision: 1, Private: private}
	b.send(cf, flagACK, request.Append(nil))
	b.send(sf, flagACK, answer.Append(nil))
	if flags&wire.FlagMarkers != 0 {
		client.markers, server.markers = new(wire.Markers), new(wire.Markers)
	}
	return client, server
}

// fpdu adds an FPDU with the given header.
func (p *peer) fpdu(b []byte, header, payload []byte) []byte {
	body := slices.Concat(header, payload)
	body = append(body, make([]byte, -len(body)&3)...)
	if p.markers != nil {
		return p.markers.Append(b, body, true)
	}
	sum := wire.Checksum(body)
	if p.badCRC {
		sum++
	}
	return wire.AppendCRC(append(b, body...), sum)
}

// message returns the FPDUs of a Send.
func (p *peer) message(op wire.Opcode, invalidate uint32, payload []byte) []byte {
	p.msn++
	var out []byte
	mo := 0
	for part := range slices.Chunk(payload, p.mulpdu) {
		last := mo+len(part) == len(payload)
		out = p.fpdu(out, wire.AppendUntagged(nil, op, last, invalidate, p.msn, uint32(mo), len(part)), part)
		mo += len(part)
	}
	return out
}

// tagged returns the FPDUs of an RDMA Write or a Read Response.
func (p *peer) tagged(op wire.Opcode, stag uint32, to uint64, data []byte) []byte {
	var out []byte
	for part := range slices.Chunk(data, p.mulpdu) {
		out = p.fpdu(out, wire.AppendTagged(nil, op, true, stag, to, len(part)), part)
		to += uint64(len(part))
	}
	return out
}

// exchange adds a Call with a Read chunk in two segments and a Write chunk, and its
// Reply, in TCP segments of n octets.
func (b *builder) exchange(client, server *peer, n int) (whole []byte, data []byte) {
	whole = call(9, 5000)
	argument := whole[100:3101] // 3001 octets, followed by 3 of roundup
	copy(whole[3101:3104], "\x00\x00\x00")
	data = bytes.Repeat([]byte("result. "), 700)
	var h rpcrdma.Header
	h.Reset(9, 64, rpcrdma.Msg)
	h.AddRead(100, rpcrdma.Segment{Handle: 0x10, Length: 1000, Offset: 1 << 40})
	h.AddRead(100, rpcrdma.Segment{Handle: 0x11, Length: 2001, Offset: 7})
	h.AddWrite(rpcrdma.Segment{Handle: 0x12, Length: 4000, Offset: 1}, rpcrdma.Segment{Handle: 0x13, Length: 4000, Offset: 2})
	b.stream(client.f, client.message(wire.OpSend, 0, slices.Concat(h.Append(nil), whole[:100], whole[3104:])), n)
	read := func(src uint32, off uint64, sink uint32, to uint64, octets []byte) {
		b.stream(server.f, server.fpdu(nil, wire.AppendReadRequest(nil, 1, wire.Read{
			SinkSTag: sink, SinkTO: to, Size: uint32(len(octets)), SrcSTag: src, SrcTO: off,
		}), nil), n)
		b.stream(client.f, client.tagged(wire.OpReadResponse, sink, to, octets), n)
	}
	// The second segment first, and in two reads.
	read(0x11, 1007, 0x99, 0, argument[2000:])
	read(0x11, 7, 0x99, 5000, argument[1000:2000])
	read(0x10, 1<<40, 0x98, 3, argument[:1000])
	b.stream(server.f, server.tagged(wire.OpWrite, 0x12, 1, data[:4000]), n)
	b.stream(server.f, server.tagged(wire.OpWrite, 0x13, 2, data[4000:]), n)
	h.Reset(9, 32, rpcrdma.Msg)
	h.AddWrite(rpcrdma.Segment{Handle: 0x12, Length: 4000, Offset: 1}, rpcrdma.Segment{Handle: 0x13, Length: 1600, Offset: 2})
	b.stream(server.f, server.message(wire.OpSendInvalidate, 0x10, slices.Concat(h.Append(nil), reply(9, 40))), n)
	return whole, data
}

// Messages finds the data of chunks for any segments, Markers and order of RDMA
// operations.
func TestChunks(t *testing.T) {
	for _, flags := range []wire.FrameFlags{wire.FlagCRC, wire.FlagCRC | wire.FlagMarkers, 0} {
		for _, n := range []int{1 << 20, 1448, 333, 20} {
			for _, mulpdu := range []int{1 << 15, 1000, 44} {
				b := newBuilder()
				client, server := b.iwarp(flags)
				client.mulpdu, server.mulpdu = mulpdu, mulpdu
				whole, data := b.exchange(client, server, n)
				c, all := readMessages(t, b.file())
				if len(all) != 2 || c.Conns[0].Protocol != IWARP {
					t.Fatalf("flags %#x, segments %d, MULPDU %d: %d messages, protocol %d", flags, n, mulpdu, len(all), c.Conns[0].Protocol)
				}
				m := &all[0]
				got, ok := m.Payload()
				if !ok || !bytes.Equal(got, whole) || !m.RDMA.Call || m.BadCRC || m.Resynchronised {
					t.Errorf("flags %#x, segments %d, MULPDU %d: Call of %d octets, whole %v: %+v", flags, n, mulpdu, len(got), ok, m.RDMA)
				}
				m = &all[1]
				got, ok = m.Payload()
				w := m.RDMA.Writes
				if !ok || !bytes.Equal(got, reply(9, 40)) || len(w) != 1 || !bytes.Equal(w[0].Data, data) || !w[0].whole() {
					t.Errorf("flags %#x, segments %d, MULPDU %d: Reply %+v", flags, n, mulpdu, m.RDMA)
				}
				if !m.RDMA.HasInvalidate || m.RDMA.Invalidate != 0x10 {
					t.Errorf("invalidates %#x", m.RDMA.Invalidate)
				}
				if in, ok := c.Conns[0].Inline(0); !ok || in != 4096 {
					t.Errorf("inline threshold %d, want 4096", in)
				}
			}
		}
	}
}

// Long Calls and Long Replies are wholly in chunks.
func TestLong(t *testing.T) {
	b := newBuilder()
	client, server := b.iwarp(wire.FlagCRC)
	var h rpcrdma.Header
	h.Reset(5, 1, rpcrdma.NoMsg)
	h.AddRead(0, rpcrdma.Segment{Handle: 1, Length: 540})
	h.SetReply(rpcrdma.Segment{Handle: 2, Length: 9000})
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, h.Append(nil)))
	b.send(server.f, flagACK, server.fpdu(nil, wire.AppendReadRequest(nil, 1, wire.Read{SinkSTag: 8, Size: 540, SrcSTag: 1}), nil))
	b.send(client.f, flagACK, client.tagged(wire.OpReadResponse, 8, 0, call(5, 500)))
	b.send(server.f, flagACK, server.tagged(wire.OpWrite, 2, 0, reply(5, 7000)))
	h.Reset(5, 1, rpcrdma.NoMsg)
	h.SetReply(rpcrdma.Segment{Handle: 2, Length: 7024})
	b.send(server.f, flagACK, server.message(wire.OpSend, 0, h.Append(nil)))
	_, all := readMessages(t, b.file())
	if len(all) != 2 {
		t.Fatalf("%d messages, want 2", len(all))
	}
	for i, want := range [][]byte{call(5, 500), reply(5, 7000)} {
		if got, ok := all[i].Payload(); !ok || !bytes.Equal(got, want) {
			t.Errorf("message %d: %d octets, whole %v; want %d", i, len(got), ok, len(want))
		}
	}
}

// A handle belongs to the Call that advertised it last.
func TestHandleReuse(t *testing.T) {
	b := newBuilder()
	client, server := b.iwarp(wire.FlagCRC)
	for i := range uint32(3) {
		text := bytes.Repeat([]byte{byte(i) + 'a'}, 8)
		var h rpcrdma.Header
		h.Reset(i, 1, rpcrdma.Msg)
		h.AddWrite(rpcrdma.Segment{Handle: 2, Length: 8})
		b.send(client.f, flagACK, client.message(wire.OpSend, 0, append(h.Append(nil), call(i, 0)...)))
		b.send(server.f, flagACK, server.tagged(wire.OpWrite, 2, 0, text))
		h.Reset(i, 1, rpcrdma.Msg)
		h.AddWrite(rpcrdma.Segment{Handle: 2, Length: 8})
		b.send(server.f, flagACK, server.message(wire.OpSend, 0, append(h.Append(nil), reply(i, 0)...)))
	}
	_, all := readMessages(t, b.file())
	if len(all) != 6 {
		t.Fatalf("%d messages, want 6", len(all))
	}
	for i := range 3 {
		if got, want := all[2*i+1].RDMA.Writes[0].Data, bytes.Repeat([]byte{byte(i) + 'a'}, 8); !bytes.Equal(got, want) {
			t.Errorf("Reply %d has %q in its chunk, want %q", i, got, want)
		}
	}
}

// A message with a wrong CRC is read, and reported with BadCRC.
func TestBadCRC(t *testing.T) {
	b := newBuilder()
	client, _ := b.iwarp(wire.FlagCRC)
	plain := func(xid uint32) []byte { return append(rpcrdma.AppendPlain(nil, xid, 1), call(xid, 8)...) }
	client.badCRC = true
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, plain(1)))
	client.badCRC = false
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, plain(2)))
	_, all := readMessages(t, b.file())
	wantMessages(t, all, plain(1), plain(2))
	if !all[0].BadCRC || all[1].BadCRC {
		t.Errorf("wrong: %v, %v; want the first", all[0].BadCRC, all[1].BadCRC)
	}
}

// Without the start of the connection, and after a hole, FPDUs are found at the beginning
// of packets.
func TestIWARPMidStream(t *testing.T) {
	b := newBuilder()
	client, server := b.iwarp(wire.FlagCRC)
	b.packs = nil
	plain := func(xid uint32) []byte { return append(rpcrdma.AppendPlain(nil, xid, 1), call(xid, 8)...) }
	first := client.message(wire.OpSend, 0, plain(1))
	b.send(client.f, flagACK, first[30:]) // the end of one
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, plain(2)))
	b.send(server.f, flagACK, server.message(wire.OpSend, 0, append(rpcrdma.AppendPlain(nil, 2, 1), reply(2, 8)...)))
	client.f.seq += 1000
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, plain(3)))
	c, all := readMessages(t, b.file())
	wantMessages(t, all, plain(2), append(rpcrdma.AppendPlain(nil, 2, 1), reply(2, 8)...), plain(3))
	if c.Conns[0].Protocol != IWARP || !all[0].Resynchronised || !all[2].Resynchronised {
		t.Errorf("protocol %d, messages %+v", c.Conns[0].Protocol, all)
	}
}

// Sends that are cut, malformed, or without a last DDP Segment.
func TestBadSends(t *testing.T) {
	b := newBuilder()
	client, _ := b.iwarp(wire.FlagCRC)
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, []byte("short")))
	client.msn++
	b.send(client.f, flagACK, client.fpdu(nil, wire.AppendUntagged(nil, wire.OpSend, true, 0, client.msn, 12, 4), []byte("tail")))
	client.msn++
	half := append(rpcrdma.AppendPlain(nil, 7, 1), call(7, 8)...)
	b.send(client.f, flagACK, client.fpdu(nil, wire.AppendUntagged(nil, wire.OpSend, false, 0, client.msn, 0, len(half)), half))
	b.snap = 100
	client.msn++
	b.send(client.f, flagACK, client.message(wire.OpSend, 0, append(rpcrdma.AppendPlain(nil, 8, 1), call(8, 500)...)))
	_, all := readMessages(t, b.file())
	if len(all) != 3 {
		t.Fatalf("%d messages, want 3: %+v", len(all), all)
	}
	if all[0].RDMA.Err == nil || string(all[0].Data) != "short" {
		t.Errorf("short Send: %+v", all[0])
	}
	if all[1].Missing == 0 || !bytes.Equal(all[1].Data, half) {
		t.Errorf("Send without end: %+v", all[1])
	}
	if m := &all[2]; m.Missing != 532 || len(m.Data) != 36 || m.RDMA.XID != 8 {
		t.Errorf("cut Send: %d missing, %d captured", m.Missing, len(m.Data))
	}
}
