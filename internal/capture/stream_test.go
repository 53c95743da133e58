package capture

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func (b *builder) file() []byte { return b.pcap(binary.LittleEndian, true) }

// stream sends octets in segments of n.
func (b *builder) stream(f *flow, octets []byte, n int) {
	for part := range slices.Chunk(octets, n) {
		b.send(f, flagACK, part)
	}
}

// Records are found whole in segments of any length and order, with sequence numbers that
// wrap.
func TestReassembly(t *testing.T) {
	want := [][]byte{call(1, 300), call(2, 0), call(3, 1000), call(4, 4), call(5, 77)}
	var octets []byte
	for _, m := range want {
		octets = append(octets, testkit.Record(m)...)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		b := newBuilder()
		client, _ := b.handshake(round%2 == 0)
		type seg struct{ from, to int }
		var segs []seg
		for at := 0; at < len(octets); {
			n := min(1+rng.IntN(400), len(octets)-at)
			segs = append(segs, seg{at, at + n})
			at += n
		}
		for range rng.IntN(5) { // retransmissions across other segments
			at := rng.IntN(len(octets))
			segs = append(segs, seg{at, min(at+1+rng.IntN(300), len(octets))})
		}
		if round > 0 {
			rng.Shuffle(len(segs), func(i, j int) { segs[i], segs[j] = segs[j], segs[i] })
		}
		again := 0
		for _, s := range segs {
			b.segment(client, client.seq+uint32(s.from), flagACK, octets[s.from:s.to])
			again += s.to - s.from
		}
		again -= len(octets)
		c, all := readMessages(t, b.file())
		if len(all) != len(want) {
			t.Fatalf("round %d: %d messages, want %d", round, len(all), len(want))
		}
		slices.SortFunc(all, func(a, b Message) int { return int(a.Offset - b.Offset) })
		wantMessages(t, all, want...)
		s := &c.Conns[0].Streams[0]
		if int(s.Captured) != len(octets) || int(s.Again) != again || s.Missing != 0 || !s.started {
			t.Fatalf("round %d: %d octets captured, %d again, %d missing; want %d, %d, 0", round, s.Captured, s.Again, s.Missing, len(octets), again)
		}
	}
}

// When octets inside a record are missing, its mark tells the position of the next record,
// without a search.
func TestHoleInRecord(t *testing.T) {
	b := newBuilder()
	client, _ := b.handshake(false)
	octets := slices.Concat(testkit.Record(call(1, 400)), testkit.Record(call(2, 8)))
	b.send(client, flagACK, octets[:100])
	client.seq += 100
	b.send(client, flagACK, octets[200:])
	c, all := readMessages(t, b.file())
	if len(all) != 2 {
		t.Fatalf("%d messages, want 2", len(all))
	}
	if m := &all[0]; m.Missing != 100 || m.Length != 440 || len(m.Data) != 96 || m.Resynchronised {
		t.Errorf("%d octets of %d, %d missing, searched %v; want 96 of 440, 100 and false", len(m.Data), m.Length, m.Missing, m.Resynchronised)
	}
	if all[1].Resynchronised {
		t.Error("the record behind was searched for")
	}
	wantMessages(t, all[1:], call(2, 8))
	if c.Conns[0].Streams[0].Missing != 100 {
		t.Errorf("stream: %d missing, want 100", c.Conns[0].Streams[0].Missing)
	}
}

// When a mark is missing, the next record is searched for.
func TestHoleOverMark(t *testing.T) {
	b := newBuilder()
	client, _ := b.handshake(false)
	octets := slices.Concat(testkit.Record(call(1, 40)), testkit.Record(call(2, 400)), testkit.Record(call(3, 8)), testkit.Record(call(4, 8)))
	b.send(client, flagACK, octets[:84])
	client.seq += 3 // octets of the second record's mark
	b.send(client, flagACK, octets[87:])
	_, all := readMessages(t, b.file())
	wantMessages(t, all, call(1, 40), call(3, 8), call(4, 8))
	if all[0].Resynchronised || !all[1].Resynchronised || all[2].Resynchronised {
		t.Errorf("searched for: %v, %v, %v; want the second alone", all[0].Resynchronised, all[1].Resynchronised, all[2].Resynchronised)
	}
}

// A capture that begins in the middle of a record, at any octet.
func TestMidStream(t *testing.T) {
	octets := slices.Concat(testkit.Record(call(1, 300)), testkit.Record(call(2, 8)), testkit.Record(reply(3, 0)), testkit.Record(call(4, 8)))
	for from := 1; from < 344; from++ {
		b := newBuilder()
		b.stream(&flow{clientV4, serverV4, 5}, octets[from:], 100)
		c, all := readMessages(t, b.file())
		wantMessages(t, all, call(2, 8), reply(3, 0), call(4, 8))
		if !all[0].Resynchronised || c.Conns[0].Streams[0].started {
			t.Fatalf("from %d: searched for %v", from, all[0].Resynchronised)
		}
	}
}

// A stream of another protocol has no records, whether or not its start was captured.
func TestNotRPC(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for _, octets := range [][]byte{noise, make([]byte, 1<<20), bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 1000), bytes.Repeat([]byte{0x80, 0, 0, 0}, 10000)} {
		for _, started := range []bool{true, false} {
			b := newBuilder()
			f := &flow{clientV4, serverV4, 5}
			if started {
				f, _ = b.handshake(false)
			}
			b.stream(f, octets, 60000)
			c, all := readMessages(t, b.file())
			if len(all) != 0 || c.Conns[0].Protocol != Unknown {
				t.Errorf("%.8x..., started %v: %d messages, protocol %d", octets, started, len(all), c.Conns[0].Protocol)
			}
		}
	}
}

// A stream that stops being RPC has a message that says so.
func TestOutOfStep(t *testing.T) {
	b := newBuilder()
	client, _ := b.handshake(false)
	b.send(client, flagACK, slices.Concat(testkit.Record(call(1, 8)), []byte("this is not a record mark, and no message"), testkit.Record(call(2, 8)), testkit.Record(call(3, 8))))
	_, all := readMessages(t, b.file())
	if len(all) != 4 || all[1].Wrong == "" {
		t.Fatalf("messages %+v", all)
	}
	wantMessages(t, []Message{all[0], all[2], all[3]}, call(1, 8), call(2, 8), call(3, 8))
	if !all[2].Resynchronised || all[3].Resynchronised {
		t.Error("want the third searched for, the fourth not")
	}
}

// RFC 5531 Section 11: records of several fragments, some of them empty.
func TestFragments(t *testing.T) {
	m := call(1, 100)
	fragment := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	octets := slices.Concat(fragment(nil), fragment(m[:3]), fragment(m[3:50]), fragment(nil), testkit.Record(m[50:]), testkit.Record(call(2, 0)), fragment(m[:30]))
	for _, n := range []int{1, 7, 1000} {
		b := newBuilder()
		client, _ := b.handshake(false)
		b.stream(client, octets, n)
		_, all := readMessages(t, b.file())
		if len(all) != 3 {
			t.Fatalf("in segments of %d: %d messages, want 3", n, len(all))
		}
		wantMessages(t, all[:2], m, call(2, 0))
		if all[0].Fragments != 5 {
			t.Errorf("%d fragments, want 5", all[0].Fragments)
		}
		if all[2].Missing == 0 || !bytes.Equal(all[2].Data, m[:30]) {
			t.Errorf("record without its last fragment: %+v", all[2])
		}
	}
}

// A second SYN between the same addresses starts another connection.
func TestReopened(t *testing.T) {
	b := newBuilder()
	client, server := b.handshake(false)
	b.send(client, flagACK, testkit.Record(call(1, 8)))
	b.send(client, flagFIN|flagACK, nil)
	client.seq, server.seq = 500000, 900000
	b.send(client, flagSYN, nil)
	b.segment(client, 500000, flagSYN, nil) // a retransmission, so no third connection
	b.send(server, flagSYN|flagACK, nil)
	b.send(client, flagACK, testkit.Record(call(2, 8)))
	b.send(server, flagACK, testkit.Record(reply(2, 8)))
	c, all := readMessages(t, b.file())
	wantMessages(t, all, call(1, 8), call(2, 8), reply(2, 8))
	if len(c.Conns) != 2 || all[1].Conn != all[2].Conn || all[0].Conn == all[1].Conn {
		t.Errorf("%d connections", len(c.Conns))
	}
}

// A record whose mark has more octets than the capture, and one beyond every bound.
func TestLongMarks(t *testing.T) {
	b := newBuilder()
	client, _ := b.handshake(false)
	m := testkit.Record(call(1, 8))
	binary.BigEndian.PutUint32(m, lastFragment|(1<<30))
	b.send(client, flagACK, m)
	_, all := readMessages(t, b.file())
	if len(all) != 1 || all[0].Length != 1<<30 || all[0].Missing != 1<<30-48 || !bytes.Equal(all[0].Data, call(1, 8)) {
		t.Errorf("messages %+v", all)
	}
	if all := Records([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0}); len(all) != 0 {
		t.Errorf("mark of 2 GiB: %+v", all)
	}
	if all := Records(nil); len(all) != 0 {
		t.Errorf("nothing: %+v", all)
	}
}
