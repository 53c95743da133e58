package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// Every format of a capture has the same packets.
func TestFormats(t *testing.T) {
	b := newBuilder()
	client, server := b.handshake(false)
	b.send(client, flagACK, testkit.Record(call(1, 8)))
	b.send(server, flagACK, testkit.Record(reply(1, 8)))
	b.snap = 60
	b.send(client, flagACK, testkit.Record(call(2, 400)))
	le, be := binary.LittleEndian, binary.BigEndian
	for _, tc := range []struct {
		name  string
		file  []byte
		exact time.Duration // resolution of the timestamps; 0 when there are none
	}{
		{"pcap", b.pcap(le, false), time.Microsecond},
		{"pcap, other order, nanoseconds", b.pcap(be, true), time.Nanosecond},
		{"pcapng", b.pcapng(le, blockEnhanced, 0), time.Microsecond},
		{"pcapng, other order, nanoseconds", b.pcapng(be, blockEnhanced, 9), time.Nanosecond},
		{"pcapng, 2 to the power -30", b.pcapng(be, blockEnhanced, 0x80|30), 20 * time.Millisecond}, // pcapgo is not exact there,
		{"pcapng, obsolete blocks", b.pcapng(le, blockPacket, 0), time.Microsecond},
		{"pcapng, simple blocks", b.pcapng(le, blockSimple, 0), 0},
		{"pcapng, resolution out of reach", b.pcapng(le, blockEnhanced, 40), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := newPackets(tc.file)
			if err != nil {
				t.Fatal(err)
			}
			var p packet
			for i, want := range b.packs {
				if err := r.read(&p); err != nil {
					t.Fatal(err)
				}
				data := p.Data
				if tc.name == "pcapng, simple blocks" {
					want.data = want.data[:min(len(want.data), 60)] // a Simple Packet Block has no captured length, but the interface's
				}
				if p.Number != i+1 || p.Link != linkRaw || int(p.Length) != want.length || !bytes.Equal(data, want.data) {
					t.Errorf("packet %d: %+v", i+1, p)
				}
				switch {
				case tc.exact == 0 && !p.Time.IsZero():
					t.Errorf("packet %d has time %v", i+1, p.Time)
				case tc.exact > 0 && p.Time.Sub(want.at).Abs() > tc.exact:
					t.Errorf("packet %d: time %v, want %v", i+1, p.Time, want.at)
				}
			}
			if err := r.read(&p); err != io.EOF {
				t.Errorf("behind the last packet: %v, want EOF", err)
			}
			c, all := readMessages(t, tc.file)
			if tc.name == "pcapng, simple blocks" {
				return // its Calls are cut, too
			}
			if len(all) != 3 || all[2].Missing != 428 || c.Conns[0].Streams[0].Cut == 0 {
				t.Errorf("messages %+v", all)
			}
		})
	}
}

func TestSections(t *testing.T) {
	b := newBuilder()
	client, _ := b.handshake(false)
	b.send(client, flagACK, testkit.Record(call(1, 8)))
	second := newBuilder()
	second.link = linkLoop
	second.wrap = func(ip []byte, _ bool) []byte { return append([]byte{0, 0, 0, 2}, ip...) }
	second.send(client, flagACK, testkit.Record(call(2, 8)))
	file := append(b.pcapng(binary.LittleEndian, blockEnhanced, 0), second.pcapng(binary.BigEndian, blockEnhanced, 9)...)
	_, all := readMessages(t, file)
	wantMessages(t, all, call(1, 8), call(2, 8))
}

func TestNoCapture(t *testing.T) {
	for _, b := range [][]byte{
		nil,
		{0xd4},
		[]byte("hello, world, this is no capture at all"), make([]byte, 100),
		{0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 1, 2, 3, 4}, // pcapng without a byte-order magic
		{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0},              // pcap that ends in its header
	} {
		if _, err := Read(b); !errors.Is(err, errFormat) {
			t.Errorf("Read(%x) = %v, want errFormat", b, err)
		}
	}
}

// Of a capture that is cut anywhere, Read finds the messages before the cut, and Err says
// where it breaks off.
func TestTruncated(t *testing.T) {
	for _, name := range []string{"testdata/tcp.pcap", "testdata/iwarp.pcap"} {
		file := readFile(t, name)
		_, all := readMessages(t, file)
		for n := pcapHeader; n < len(file); n += 1 + n%97 {
			c, some := readMessages(t, file[:n])
			if c.Err != nil && !strings.Contains(c.Err.Error(), "capture breaks off") {
				t.Fatalf("%d octets: %v", n, c.Err)
			}
			if len(some) > len(all) {
				t.Fatalf("%d octets hold %d messages, all %d", n, len(some), len(all))
			}
			for i := range some {
				if !bytes.Equal(some[i].Data, all[i].Data) {
					t.Fatalf("%d octets: message %d differs", n, i)
				}
			}
		}
	}
}

// Err describes a broken file, and the packets before that place are good.
func TestBroken(t *testing.T) {
	b := newBuilder()
	client, _ := b.handshake(false)
	b.send(client, flagACK, testkit.Record(call(1, 8)))
	le := binary.LittleEndian
	ng, classic := slices.Clip(b.pcapng(le, blockEnhanced, 0)), slices.Clip(b.pcap(le, false))
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"huge packet", append(classic, le.AppendUint32(make([]byte, 8), 0xffffffff)...), "the file ends within a packet"},
		{"packet of 4 GiB", append(classic, append(le.AppendUint32(make([]byte, 8), 0xffffffff), 0, 0, 0, 0)...), "4294967295"},
		{"block of 8", append(ng, 6, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0), "the file ends within a packet"},
		{"block of 4 GiB", append(ng, 6, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff, 0, 0, 0, 0), "the file ends within a packet"},
		{"odd block", append(ng, 6, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0, 0), "the file ends within a packet"},
		{"short block", block(ng, le, blockEnhanced, make([]byte, 16)), "the file ends within a packet"},
		{"interface 9", block(ng, le, blockEnhanced, append([]byte{9}, make([]byte, 19)...)), "Interface id 9 not present"},
		{"end in a block", append(ng, 6, 0, 0), "the file ends within a packet"},
		{"section without order", block(ng, le, magicBlocks, make([]byte, 16)), "Wrong byte order value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, all := readMessages(t, tc.file)
			if c.Err == nil || !strings.Contains(c.Err.Error(), "capture breaks off behind packet 4: ") || !strings.Contains(c.Err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", c.Err, tc.want)
			}
			wantMessages(t, all, call(1, 8))
		})
	}
}
