package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// fpdu completes head and payload without Markers.
func fpdu(head []byte, payload ...byte) []byte {
	b := append(append([]byte(nil), head...), payload...)
	b = append(b, make([]byte, -len(b)&3)...)
	return AppendCRC(b, Checksum(b))
}

func TestCRC(t *testing.T) {
	if got := Checksum([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("check value = %08x, want e3069283", got)
	}
	// RFC 5044 Figures 5 and 6: a Send of 24 zero octets behind and around a Marker.
	for _, v := range []struct{ fpdu, crc string }{
		{`
			0000 0000             # Marker, FPDUPTR 0
			002a 41 43 00000000   # ULPDU_Length 42; untagged, Last; Send
			00000000 00000001     # QN 0, MSN 1
			00000000              # MO 0
		`, "52239983"},
		{`
			002a 41 43 00000000   # at stream octet 0x1ec
			00000000 00000002     # QN 0, MSN 2
			00000000              # MO 0
			0000 0014             # Marker, FPDUPTR 20
		`, "84925898"},
	} {
		b := append(testkit.Unhex(t, v.fpdu), make([]byte, 24)...)
		got := AppendCRC(nil, Update(Update(0, b[:7]), b[7:]))
		if want := testkit.Unhex(t, v.crc); !bytes.Equal(got, want) {
			t.Errorf("CRC = %x, want %x", got, want)
		}
		if CRC(got) != Checksum(b) {
			t.Errorf("CRC(%x) = %08x, want %08x", got, CRC(got), Checksum(b))
		}
	}
}

// Golden FPDUs. Linux siw has accepted them; the last two it has sent.
var golden = []struct {
	name, hex string
	build     func() []byte
}{
	{"Write of nothing", "000e c140 00000001 0000000000000000 ebd34c5f", func() []byte {
		return fpdu(AppendTagged(nil, OpWrite, true, 1, 0, 0))
	}},
	{"Write of hello", "0013 c140 00001234 0000010000000000 68656c6c6f 000000 f5d20c63", func() []byte {
		return fpdu(AppendTagged(nil, OpWrite, true, 0x1234, 1<<40, 5), []byte("hello")...)
	}},
	{"Send with Invalidate", "0016 4144 00abcd01 00000000 00000002 00000000 01020304 857c738c", func() []byte {
		return fpdu(AppendUntagged(nil, OpSendInvalidate, true, 0xabcd01, 2, 0, 4), 1, 2, 3, 4)
	}},
	{"Read Request", `002e 4141 00000000 00000001 00000001 00000000
		00001111 0000000000000099 00002000 00777702 0000000000010000 ee59567f`, func() []byte {
		return fpdu(AppendReadRequest(nil, 1, Read{0x1111, 0x99, 8192, 0x777702, 0x10000}))
	}},
	{"Read Response", "0012 c142 00001111 0000000000000099 aabbccdd 2265ac98", func() []byte {
		return fpdu(AppendTagged(nil, OpReadResponse, true, 0x1111, 0x99, 4), 0xaa, 0xbb, 0xcc, 0xdd)
	}},
	{"Terminate, CRC", "0016 4147 00000000 00000002 00000001 00000000 20020000 7fe42585", func() []byte {
		t := Terminate{Code: CodeCRC}
		return fpdu(AppendUntagged(nil, OpTerminate, true, 0, 1, 0, 4), t.Append(nil)...)
	}},
	{"Terminate, CRC, siw", "0016 4147 00000000 00000002 00000001 00000000 02020000 75d367ed", func() []byte {
		t := Terminate{Code: CodeCRC, Mirrored: true}
		return fpdu(AppendUntagged(nil, OpTerminate, true, 0, 1, 0, 4), t.Append(nil)...)
	}},
	{"Terminate, STag", `0026 4147 00000000 00000002 00000001 00000000
		1100c000 0012 c140deadbe000000000000001000 04e669ce`, func() []byte {
		t := Terminate{Code: CodeTaggedSTag, HasLen: true, SegLen: 18, DDP: AppendTagged(nil, OpWrite, true, 0xdeadbe00, 0x1000, 4)[2:]}
		p := t.Append(nil)
		return fpdu(AppendUntagged(nil, OpTerminate, true, 0, 1, 0, len(p)), p...)
	}},
	{"Send of an NFS NULL call", `0056 4143 00000000 00000000 00000001 00000000
		00000077 00000001 00000020 00000000 00000000 00000000 00000000
		00000077 00000000 00000002 000186a3 00000003 00000000
		00000000 00000000 00000000 00000000 03fdea86`, func() []byte {
		p := make([]byte, 68)
		for i, v := range []uint32{0x77, 1, 32, 0, 0, 0, 0, 0x77, 0, 2, 100003, 3} {
			binary.BigEndian.PutUint32(p[4*i:], v)
		}
		return fpdu(AppendUntagged(nil, OpSend, true, 0, 1, 0, len(p)), p...)
	}},
}

func TestGolden(t *testing.T) {
	for _, g := range golden {
		want := testkit.Unhex(t, g.hex)
		if got := g.build(); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", g.name, got, want)
		}
		c := Control(want)
		if n := FPDULen(c.ULPDULen()); n != len(want) {
			t.Errorf("%s: FPDULen = %d, want %d", g.name, n, len(want))
		}
		if c.DDPVersion() != DDPVersion || c.RDMAPVersion() != RDMAPVersion || !c.Last() || c.Tagged() != c.Opcode().Tagged() {
			t.Errorf("%s: control octets % x misread", g.name, want[2:4])
		}
	}
}

func TestViews(t *testing.T) {
	w := Tagged(testkit.Unhex(t, golden[1].hex))
	if w.STag() != 0x1234 || w.TO() != 1<<40 || w.Len() != 5 || w.Control().Opcode() != OpWrite {
		t.Errorf("Write: STag %#x TO %#x Len %d", w.STag(), w.TO(), w.Len())
	}
	s := Untagged(testkit.Unhex(t, golden[2].hex))
	if s.Invalidate() != 0xabcd01 || s.QN() != 0 || s.MSN() != 2 || s.MO() != 0 || s.Len() != 4 {
		t.Errorf("Send: Invalidate %#x QN %d MSN %d MO %d Len %d", s.Invalidate(), s.QN(), s.MSN(), s.MO(), s.Len())
	}
	r := ReadRequest(testkit.Unhex(t, golden[3].hex))
	if r.SinkSTag() != 0x1111 || r.SinkTO() != 0x99 || r.Size() != 8192 || r.SrcSTag() != 0x777702 || r.SrcTO() != 0x10000 ||
		r.Untagged().QN() != QueueReadRequest || r.Untagged().Control().ULPDULen() != ReadRequestULPDU {
		t.Errorf("Read Request misread")
	}
}

func TestOpcodes(t *testing.T) {
	for op := range Opcode(16) {
		if op.Known() != (op < 8) || op.String() == "" {
			t.Errorf("%v: Known = %v", op, op.Known())
		}
		if op.Known() && op.Tagged() != (op.HeaderLen() == TaggedLen) {
			t.Errorf("%v: HeaderLen = %d", op, op.HeaderLen())
		}
	}
}

func TestMULPDU(t *testing.T) {
	// The table of RFC 5044 Section 4.5's formulas for common paths.
	for _, v := range []struct{ emss, plain, marked int }{
		{1448, 1442, 1430},
		{1460, 1454, 1442},
		{8948, 8942, 8870},
		{65483, 64768, 64768},
		{100, 128, 128},
		{0, 128, 128},
	} {
		if n := MULPDU(v.emss, false); n != v.plain {
			t.Errorf("MULPDU(%d) = %d, want %d", v.emss, n, v.plain)
		}
		if n := MULPDU(v.emss, true); n != v.marked {
			t.Errorf("MULPDU(%d) with Markers = %d, want %d", v.emss, n, v.marked)
		}
		if v.emss > 1000 && v.emss < 60000 {
			if n := FPDULen(MULPDU(v.emss, false)); n > v.emss {
				t.Errorf("an FPDU of %d octets in a segment of %d", n, v.emss)
			}
		}
	}
	for n := range 8 {
		if l := FPDULen(n); l%4 != 0 || l < 2+n+4 || l > 2+n+3+4 {
			t.Errorf("FPDULen(%d) = %d", n, l)
		}
	}
}

// siwRequest is a Request of Linux siw.
const siwRequest = `
	4d504120494420526571204672616d65  # MPA ID Req Frame
	50 02 000c                        # C, S; revision 2; 12 octets
	0010 0010                         # IRD 16, ORD 16
	f6ab0e18 01 01 03 03              # RFC 8797
`

func TestFrames(t *testing.T) {
	req := testkit.Unhex(t, siwRequest)
	f := Frame{
		Flags: FlagCRC | FlagEnhanced, Revision: 2,
		Enhanced: Enhanced{IRD: 16, ORD: 16}, Private: testkit.Unhex(t, "f6ab0e1801010303"),
	}
	if got := f.Append(nil); !bytes.Equal(got, req) {
		t.Errorf("Append = %x, want %x", got, req)
	}
	g, err := parse(req)
	if err != nil || g.Reply || g.Flags != f.Flags || g.Revision != 2 || g.Enhanced != f.Enhanced || !bytes.Equal(g.Private, f.Private) {
		t.Errorf("parse = %+v, %v", g, err)
	}
	for i := range req {
		if i >= FrameLen && i < FrameLen+EnhancedLen || i < FrameLen {
			if _, err := parse(req[:i]); err == nil {
				t.Errorf("a prefix of %d octets is a frame", i)
			}
		}
	}
}

func TestFramesPeerToPeer(t *testing.T) {
	e := Enhanced{PeerToPeer: true, RTRSend: true, RTRWrite: true, RTRRead: true, IRD: 0x3ffe, ORD: 1}
	f := Frame{Reply: true, Flags: FlagEnhanced, Revision: 2, Enhanced: e}
	b := f.Append(nil)
	if want := testkit.Unhex(t, "fffec001"); !bytes.Equal(b[FrameLen:], want) {
		t.Errorf("block %x, want %x", b[FrameLen:], want)
	}
	g, err := parse(b)
	if err != nil || !g.Reply || g.Enhanced != e {
		t.Errorf("parse = %+v, %v", g, err)
	}
	// "B, C and D are ignored" without A.
	b[FrameLen] &= 0x7f
	if g, err = parse(b); err != nil || g.Enhanced != (Enhanced{IRD: 0x3ffe, ORD: 1}) {
		t.Errorf("without A: %+v, %v", g.Enhanced, err)
	}
}

func TestFramesOdd(t *testing.T) {
	req := testkit.Unhex(t, siwRequest)
	// Reserved flags are ignored; revision 1 has no block.
	req[16] |= 0x0f
	req[17] = 1
	g, err := parse(req)
	if err != nil || len(g.Private) != 12 {
		t.Errorf("revision 1: %+v, %v", g, err)
	}
	var fe *FrameError
	req[18] = 2
	req[19] = 1
	if _, err = parse(req); !errors.As(err, &fe) {
		t.Errorf("PD_Length 513: %v", err)
	}
	req[3]++
	if _, err = parse(req); !errors.As(err, &fe) {
		t.Errorf("bad key: %v", err)
	}
}

// parse reads a frame with its private data.
func parse(b []byte) (Frame, error) {
	f, n, err := ParseFrameHeader(b)
	if err != nil {
		return f, err
	}
	if len(b) < FrameLen+n {
		return f, errShort
	}
	return f, f.ParsePrivate(b[FrameLen : FrameLen+n])
}

func FuzzFrame(f *testing.F) {
	f.Add(append([]byte(requestKey), 0x50, 2, 0, 12, 0, 16, 0, 16, 0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3))
	f.Add(append([]byte(replyKey), 0x70, 2, 0, 4, 0xff, 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := parse(b)
		if err != nil {
			return
		}
		if fr.Revision < 2 {
			fr.Flags &^= FlagEnhanced
		}
		g, err := parse(fr.Append(nil))
		if err != nil || g.Enhanced != fr.Enhanced || !bytes.Equal(g.Private, fr.Private) || g.Flags != fr.Flags {
			t.Errorf("%+v came back as %+v, %v", fr, g, err)
		}
	})
}

func TestTerminate(t *testing.T) {
	tagged := AppendTagged(nil, OpWrite, true, 7, 9, 4)[2:]
	read := AppendReadRequest(nil, 3, Read{1, 2, 3, 4, 5})
	for _, v := range []struct {
		name, hex string
		want      Terminate
	}{
		{"RFC", "20020000", Terminate{Code: CodeCRC}},
		{"siw", "02020000", Terminate{Code: CodeCRC, Mirrored: true}},
		{"both", "02060000", Terminate{Code: CodeOpcode}}, // siw means 2/0/06: the raw octets are logged
		{"siw MSN", "21030300 0012" + hex.EncodeToString(tagged), Terminate{Code: CodeMSN, Mirrored: true, HasLen: true, SegLen: 18, DDP: tagged}},
		{"RFC read", "0100e000 002e" + hex.EncodeToString(read[2:]), Terminate{
			Code: CodeReadSTag, HasLen: true, SegLen: 46, DDP: read[2:UntaggedLen], RDMAP: read[UntaggedLen:],
		}},
		{"siw read", "10000700 002e" + hex.EncodeToString(read[2:]), Terminate{
			Code: CodeReadSTag, Mirrored: true, HasLen: true, SegLen: 46, DDP: read[2:UntaggedLen], RDMAP: read[UntaggedLen:],
		}},
		{"header announced and missing", "1100c000 0012 c140", Terminate{Code: CodeTaggedSTag}},
		{"unknown", "ffff0000", Terminate{Code: Code{15, 15, 255}}},
	} {
		b := testkit.Unhex(t, v.hex)
		got, err := ParseTerminate(b)
		if err != nil || got.Code != v.want.Code || got.Mirrored != v.want.Mirrored || got.SegLen != v.want.SegLen ||
			got.HasLen != v.want.HasLen || !bytes.Equal(got.DDP, v.want.DDP) || !bytes.Equal(got.RDMAP, v.want.RDMAP) {
			t.Errorf("%s: %+v, %v; want %+v", v.name, got, err, v.want)
		}
		if len(b) == 4 || got.DDP != nil {
			if enc := got.Append(nil); !bytes.Equal(enc, b) {
				t.Errorf("%s: encodes as %x, want %x", v.name, enc, b)
			}
		}
	}
	for n := range 4 {
		if _, err := ParseTerminate(make([]byte, n)); !errors.Is(err, errShort) {
			t.Errorf("%d octets: %v", n, err)
		}
	}
	if len(codeText) != 33 {
		t.Errorf("%d codes", len(codeText))
	}
	if s := CodeCRC.String(); s != "2/0/02 CRC error" {
		t.Errorf("String = %q", s)
	}
}

func FuzzTerminate(f *testing.F) {
	f.Add([]byte{0x20, 2, 0, 0})
	f.Add(append([]byte{0x10, 0, 7, 0, 0, 46}, AppendReadRequest(nil, 3, Read{1, 2, 3, 4, 5})[2:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseTerminate(b)
		if err != nil {
			return
		}
		w, err := ParseTerminate(v.Append(nil))
		if err != nil || !bytes.Equal(v.DDP, w.DDP) || !bytes.Equal(v.RDMAP, w.RDMAP) {
			t.Errorf("%+v came back as %+v, %v", v, w, err)
		}
		// 20 05 and 20 06 exist in both forms, so one without headers may change.
		if v.DDP != nil && v.Code != w.Code {
			t.Errorf("code %v came back as %v", v.Code, w.Code)
		}
	})
}

// unmark removes Markers from a stream that starts at position pos, and checks
// them against where FPDUs start.
func unmark(t testing.TB, stream []byte, pos int) (out [][]byte) {
	t.Helper()
	at, start := 0, -1
	var cur []byte
	marker := func() {
		for at < len(stream) && (pos+at)%MarkerSpacing == 0 {
			want := 0
			if start >= 0 {
				want = at - start
			}
			if got := int(binary.BigEndian.Uint32(stream[at:])); got != want {
				t.Fatalf("Marker at %d points back %d, want %d", pos+at, got, want)
			}
			at += MarkerLen
		}
	}
	for at < len(stream) {
		from := at
		start = -1
		marker()
		start = at
		cur = nil
		n := FPDULen(int(binary.BigEndian.Uint16(stream[at:])))
		for len(cur) < n {
			if len(cur) > 0 {
				marker()
			}
			if len(cur) == n-4 {
				if got, want := CRC(stream[at:]), Checksum(stream[from:at]); got != want {
					t.Fatalf("CRC = %08x, want %08x", got, want)
				}
			}
			cur = append(cur, stream[at:at+4]...)
			at += 4
		}
		out = append(out, cur)
	}
	return out
}

func TestMarkers(t *testing.T) {
	// RFC 5044 Figures 5 and 6.
	var m Markers
	body := append(AppendUntagged(nil, OpSend, true, 0, 1, 0, 24), make([]byte, 24)...)
	b := m.Append(nil, body, true)
	if want := append(append(make([]byte, 4), body...), testkit.Unhex(t, "52239983")...); !bytes.Equal(b, want) {
		t.Errorf("Figure 5: %x, want %x", b, want)
	}
	m.Seek(0x1ec)
	body = append(AppendUntagged(nil, OpSend, true, 0, 2, 0, 24), make([]byte, 24)...)
	b = m.Append(nil, body, true)
	want := append(append([]byte(nil), body[:20]...), 0, 0, 0, 20)
	want = append(append(want, body[20:]...), testkit.Unhex(t, "84925898")...)
	if !bytes.Equal(b, want) {
		t.Errorf("Figure 6: %x, want %x", b, want)
	}

	// FPDUs of any sequence of lengths come out as they went in.
	m = Markers{}
	var stream []byte
	var in [][]byte
	for i, n := range []int{0, 1, 3, 24, 468, 472, 476, 480, 484, 488, 492, 496, 500, 504, 508, 512, 1000, 1300, 5000, 64000} {
		body := AppendTagged(nil, OpWrite, true, uint32(i), 0, n)
		body = append(body, bytes.Repeat([]byte{byte(i)}, n)...)
		body = append(body, make([]byte, -len(body)&3)...)
		in = append(in, body)
		before := len(stream)
		stream = m.Append(stream, body, true)
		if got, most := len(stream)-before, MarkedLen(len(body)+CRCLen); got > most {
			t.Errorf("%d octets with Markers, MarkedLen says %d", got, most)
		}
	}
	out := unmark(t, stream, 0)
	for i := range in {
		if !bytes.Equal(out[i][:len(out[i])-4], in[i]) {
			t.Errorf("FPDU %d differs", i)
		}
	}
	m = Markers{}
	if b := m.Append(nil, body, false); !bytes.Equal(b[len(b)-4:], make([]byte, 4)) {
		t.Errorf("CRC off: %x", b[len(b)-4:])
	}
}

func FuzzMarkers(f *testing.F) {
	f.Add(uint16(0x1ec), []byte{24, 100, 0})
	f.Fuzz(func(t *testing.T, pos uint16, lens []byte) {
		pos &^= 3
		var m Markers
		m.Seek(uint64(pos))
		var stream []byte
		for _, n := range lens {
			body := AppendTagged(nil, OpWrite, true, 1, 2, 5*int(n))
			body = append(body, make([]byte, 5*int(n))...)
			body = append(body, make([]byte, -len(body)&3)...)
			stream = m.Append(stream, body, true)
		}
		if got := len(unmark(t, stream, int(pos))); got != len(lens) {
			t.Errorf("%d FPDUs, want %d", got, len(lens))
		}
	})
}

func TestAllocs(t *testing.T) {
	b := make([]byte, 0, 128)
	n := testing.AllocsPerRun(100, func() {
		b = AppendTagged(b[:0], OpWrite, true, 1, 2, 3)
		b = AppendReadRequest(b, 1, Read{})
		b = AppendCRC(b, Checksum(b))
		if _, err := ParseTerminate(b[:4]); err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHeader(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.SetBytes(TaggedLen)
	for b.Loop() {
		buf = AppendTagged(buf[:0], OpWrite, true, 1, 2, 3)
	}
}

func BenchmarkMarkers(b *testing.B) {
	var m Markers
	body := make([]byte, 64764)
	out := make([]byte, 0, 2*len(body))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		out = m.Append(out[:0], body, true)
	}
}
