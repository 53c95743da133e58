package rpcrdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestVectors(t *testing.T) {
	var h Header // used for all messages, so that remains of one would show in the next
	for _, v := range vectors(t) {
		n, err := h.Decode(v.octet)
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if got := say(&h); got != v.says {
			t.Errorf("%s:\n got %s\nwant %s", v.name, got, v.says)
		}
		if h.Len() != n {
			t.Errorf("%s: Len = %d, Decode took %d", v.name, h.Len(), n)
		}
		if got := h.Append(nil); !bytes.Equal(got, v.octet[:n]) {
			t.Errorf("%s: encoded\n got %x\nwant %x", v.name, got, v.octet[:n])
		}
		// "This XID MUST be the same as the XID in the RPC message." Section 4.2.1.
		if payload := v.octet[n:]; len(payload) > 0 && (h.Proc != Msg || binary.BigEndian.Uint32(payload) != h.XID) {
			t.Errorf("%s: the Payload stream does not start at %d", v.name, n)
		}
	}
}

// A header that is built encodes like one that is decoded.
func TestBuild(t *testing.T) {
	var h Header
	h.Reset(0xad, math.MaxUint32, Msg)
	h.AddRead(128, Segment{Handle: 1, Length: 4})
	h.AddRead(256, Segment{Handle: 2, Length: math.MaxUint32, Offset: math.MaxUint64})
	h.AddWrite(Segment{3, 16, 1}, Segment{4, 0, 2})
	h.AddWrite()
	w := h.AddWrite(Segment{5, 32, 3})
	h.SetReply(Segment{6, 4096, 4})
	if w.Length() != 32 || h.Reply.Length() != 4096 || h.Writes[1].Length() != 0 {
		t.Errorf("lengths %d, %d, %d", w.Length(), h.Reply.Length(), h.Writes[1].Length())
	}
	if h.ReadLength(256) != math.MaxUint32 || h.ReadLength(0) != 0 {
		t.Errorf("ReadLength: %d, %d", h.ReadLength(256), h.ReadLength(0))
	}
	for _, v := range vectors(t) {
		if v.name != "everything" {
			continue
		}
		if got := h.Append(nil); !bytes.Equal(got, v.octet) {
			t.Errorf("got\n%x, want\n%x", got, v.octet)
		}
		if h.Len() != len(v.octet) {
			t.Errorf("Len = %d, want %d", h.Len(), len(v.octet))
		}
		return
	}
	t.Error("no vector to compare with")
}

// Chunks stay valid when their storage grows, and appending to one does not
// change another.
func TestStorage(t *testing.T) {
	var h Header
	for range 3 {
		h.Reset(1, 1, Msg)
		for i := range 40 {
			h.AddWrite(Segment{Handle: uint32(i)}, Segment{Handle: uint32(i) << 16})
		}
		h.SetReply(Segment{Handle: 99})
		for i := range h.Writes {
			w := h.Writes[i].Segments
			if cap(w) != 2 || w[0].Handle != uint32(i) || w[1].Handle != uint32(i)<<16 {
				t.Fatalf("chunk %d: %v", i, w)
			}
		}
	}
	// An empty chunk is not an absent one.
	h.Reset(1, 1, Msg)
	h.SetReply()
	if h.Reply == nil || h.Len() != PlainLen+4 {
		t.Error("an empty Reply chunk is not there")
	}
}

// Decoding fails for every proper prefix of a header, with the answer that RFC
// 8166 Section 4.5 requires.
func TestTruncated(t *testing.T) {
	var h Header
	for _, v := range vectors(t) {
		n, err := h.Decode(v.octet)
		if err != nil {
			t.Fatal(err)
		}
		proc := h.Proc
		for i := range n {
			_, err := h.Decode(v.octet[:i:i])
			var he *HeaderError
			if !errors.As(err, &he) {
				t.Fatalf("%s cut to %d of %d octets: %v", v.name, i, n, err)
			}
			want := AnswerErrChunk
			if i < PlainLen || proc == Error {
				want = Silence
			}
			if he.Answer != want || !errors.Is(err, errShort) {
				t.Errorf("%s cut to %d of %d octets: %v: answer %v, want %v", v.name, i, n, err, he.Answer, want)
			}
			if len(h.Reads)+len(h.Writes) > 0 || h.Reply != nil {
				t.Errorf("%s cut to %d: lists left behind", v.name, i)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name, hex string
		answer    Answer
		err       error
	}{
		{"empty", "", Silence, errShort},
		{"version 2", "00000001 00000002 00000001 00000000 00000000 00000000 00000000", AnswerErrVers, errVersion},
		{"version 0", "00000001 00000000 00000001 00000000 00000000 00000000 00000000", AnswerErrVers, errVersion},
		{"version 2, too short to trust", "00000001 00000002 00000001 00000000 00000000 00000000", Silence, errShort},
		{"version 2 says error", "00000001 00000002 00000001 00000004 00000001 00000002 00000002", Silence, errVersion},
		{"version 2 says done", "00000001 00000002 00000001 00000003 00000000 00000000 00000000", AnswerErrVers, errVersion},
		{"procedure 5", "00000001 00000001 00000001 00000005 00000000 00000000 00000000", AnswerErrChunk, errProcedure},
		{"procedure 2^32-1", "00000001 00000001 00000001 ffffffff 00000000 00000000 00000000", AnswerErrChunk, errProcedure},
		{"error code 0", "00000001 00000001 00000001 00000004 00000000", Silence, errUnknownCode},
		{"error code 3", "00000001 00000001 00000001 00000004 00000003", Silence, errUnknownCode},
		{"no chunk at all", "00000001 00000001 00000001 00000001 00000000 00000000 00000000", AnswerErrChunk, errNoChunks},
		{"read list flag 2", "00000001 00000001 00000001 00000000 00000002 00000000 00000000", AnswerErrChunk, errBoolean},
		{"write list flag", "00000001 00000001 00000001 00000000 00000000 01000000 00000000", AnswerErrChunk, errBoolean},
		{"reply flag", "00000001 00000001 00000001 00000000 00000000 00000000 ffffffff", AnswerErrChunk, errBoolean},
		{"position 2", "00000001 00000001 00000001 00000000 00000001 00000002 00000001 00000001 0000000000000000 00000000 00000000 00000000", AnswerErrChunk, errPosition},
		{"2^32-1 write segments", "00000001 00000001 00000001 00000000 00000000 00000001 ffffffff 00000000 00000000", AnswerErrChunk, errShort},
		{"2^28 reply segments", "00000001 00000001 00000001 00000000 00000000 00000000 00000001 10000000 00000000 00000000 0000000000000000", AnswerErrChunk, errShort},
	} {
		var h Header
		b := testkit.Unhex(t, test.hex)
		n, err := h.Decode(b)
		var he *HeaderError
		if !errors.As(err, &he) || !errors.Is(err, test.err) || he.Answer != test.answer || n != 0 {
			t.Errorf("%s: %d, %v (answer %v), want %v (%v)", test.name, n, err, he.Answer, test.err, test.answer)
			continue
		}
		if len(b) >= FixedLen && he.XID != 1 {
			t.Errorf("%s: xid %d", test.name, he.XID)
		}
		// The answer has the XID and the version of the failing message.
		var reply, back Header
		if got := he.Reply(&reply, 7); got != (test.answer != Silence) {
			t.Errorf("%s: Reply = %v", test.name, got)
		} else if got {
			octets := reply.Append(nil)
			want := binary.BigEndian.AppendUint32(bytes.Clone(b[:8]), 7)
			want = binary.BigEndian.AppendUint32(want, uint32(Error))
			if test.answer == AnswerErrVers {
				want = append(want, testkit.Unhex(t, "00000001 00000001 00000001")...)
			} else {
				want = append(want, testkit.Unhex(t, "00000002")...)
			}
			if !bytes.Equal(octets, want) {
				t.Errorf("%s: answered\n%x, want\n%x", test.name, octets, want)
			}
			if _, err := back.Decode(octets); err != nil && he.Version == Version {
				t.Errorf("%s: the answer does not decode: %v", test.name, err)
			}
		}
		if he.Error() == "" || test.answer.String() == "unknown answer" {
			t.Error("no words")
		}
	}
}

func TestLimits(t *testing.T) {
	build := func(reads, writes, segments, reply int) []byte {
		var h Header
		h.Reset(1, 1, Msg)
		for range reads {
			h.AddRead(0, Segment{})
		}
		for range writes {
			h.AddWrite(make([]Segment, segments)...)
		}
		if reply > 0 {
			h.SetReply(make([]Segment, reply)...)
		}
		return h.Append(nil)
	}
	for _, test := range []struct {
		name                           string
		reads, writes, segments, reply int
		ok                             bool
	}{
		{"reads at the limit", maxReads, 0, 0, 0, true},
		{"reads beyond", maxReads + 1, 0, 0, 0, false},
		{"writes at the limit", 0, maxWrites, 1, 0, true},
		{"writes beyond", 0, maxWrites + 1, 0, 0, false},
		{"segments at the limit", 0, 1, maxSegments, 0, true},
		{"segments beyond", 0, 1, maxSegments + 1, 0, false},
		{"reply segments beyond", 0, 0, 0, maxSegments + 1, false},
		{"total at the limit", maxReads, 1, maxTotal - maxReads, 0, true},
		{"total beyond", maxReads, 1, maxTotal - maxReads, 1, false},
	} {
		var h Header
		_, err := h.Decode(build(test.reads, test.writes, test.segments, test.reply))
		if test.ok != (err == nil) || !test.ok && !errors.Is(err, errTooMany) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestPlain(t *testing.T) {
	for _, v := range vectors(t) {
		var h Header
		if _, err := h.Decode(v.octet); err != nil {
			t.Fatal(err)
		}
		plain := h.Proc == Msg && h.Len() == PlainLen
		xid, credits, ok := ParsePlain(v.octet)
		if ok != plain || ok && (xid != h.XID || credits != h.Credits) {
			t.Errorf("%s: ParsePlain = %x, %d, %v; want %v", v.name, xid, credits, ok, plain)
		}
		if got := AppendPlain(nil, h.XID, h.Credits); plain && !bytes.Equal(got, v.octet[:PlainLen]) {
			t.Errorf("%s: AppendPlain = %x", v.name, got)
		}
	}
	b := AppendPlain(nil, 0xdeadbeef, 128)
	for i := range b {
		if _, _, ok := ParsePlain(b[:i]); ok {
			t.Errorf("%d octets are a header", i)
		}
		c := bytes.Clone(b)
		c[i] ^= 0x10
		// Only xid and credits may have any value.
		if _, _, ok := ParsePlain(c); ok != (i < 4 || i >= 8 && i < 12) {
			t.Errorf("octet %d changed: %v", i, ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.octet)
	}
	var h Header
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		n, err := h.Decode(b)
		if !bytes.Equal(b, before) {
			t.Fatal("Decode changed its input")
		}
		if xid, credits, ok := ParsePlain(b); ok && (err != nil || n != PlainLen || xid != h.XID || credits != h.Credits) {
			t.Fatalf("ParsePlain took what Decode read as %s, %v", say(&h), err)
		}
		if err != nil {
			checkError(t, n, err)
			return
		}
		if n > len(b) || n != h.Len() {
			t.Fatalf("header of %d octets in %d, Len %d", n, len(b), h.Len())
		}
		if got := h.Append(nil); !bytes.Equal(got, b[:n]) {
			t.Fatalf("encoded\n%x, decoded\n%x", got, b[:n])
		}
		checkLimits(t, &h)
	})
}

// checkError checks the results of a Decode that failed, and the answer to them.
func checkError(t *testing.T, n int, err error) {
	t.Helper()
	var he *HeaderError
	if !errors.As(err, &he) || n != 0 {
		t.Fatalf("%d, %v", n, err)
	}
	var answer Header
	if he.Reply(&answer, 1) && (answer.XID != he.XID || answer.Len() > errVersLen) {
		t.Fatalf("answer %s to %v", say(&answer), err)
	}
}

// checkLimits checks that the lists of h are as short as Decode promises.
func checkLimits(t *testing.T, h *Header) {
	t.Helper()
	total := len(h.Reads)
	for i := range h.Writes {
		total += len(h.Writes[i].Segments)
	}
	if h.Reply != nil {
		total += len(h.Reply.Segments)
	}
	if total > maxTotal || len(h.Reads) > maxReads || len(h.Writes) > maxWrites {
		t.Fatalf("limits passed: %d reads, %d writes, %d in total", len(h.Reads), len(h.Writes), total)
	}
}

func TestAllocs(t *testing.T) {
	var h Header
	out := make([]byte, 0, 4096)
	var all [][]byte
	for _, v := range vectors(t) {
		all = append(all, v.octet)
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, b := range all {
			if _, err := h.Decode(b); err != nil {
				t.Fatal(err)
			}
			out = h.Append(out[:0])
		}
	}); n != 0 {
		t.Errorf("decoding and encoding the vectors: %v allocs", n)
	}
	chunk := []Segment{{1, 2, 3}, {4, 5, 6}}
	if n := testing.AllocsPerRun(100, func() {
		h.Reset(1, 2, Msg)
		h.AddRead(128, chunk[0])
		h.AddWrite(chunk...)
		h.AddWrite(Segment{7, 8, 9})
		h.SetReply(chunk...)
		out = h.Append(out[:0])
	}); n != 0 {
		t.Errorf("building: %v allocs", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, v := range vectors(b) {
		switch v.name {
		case "null-call", "nfs3-read.call", "nfs3-write.call", "everything":
		default:
			continue
		}
		b.Run(v.name, func(b *testing.B) {
			var h Header
			n, _ := h.Decode(v.octet)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = h.Decode(v.octet)
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	var h Header
	h.Reset(1, 128, Msg)
	h.AddWrite(Segment{0x1234, 65536, 0x5678})
	out := make([]byte, 0, 4096)
	b.SetBytes(int64(h.Len()))
	b.ReportAllocs()
	for b.Loop() {
		out = h.Append(out[:0])
	}
}

func BenchmarkParsePlain(b *testing.B) {
	msg := AppendPlain(nil, 1, 128)
	b.SetBytes(PlainLen)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := ParsePlain(msg); !ok {
			b.Fatal("not plain")
		}
	}
}
