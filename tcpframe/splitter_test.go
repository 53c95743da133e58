package tcpframe

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// cut runs b through a splitter. piece returns the length of each next piece.
func cut(s *splitter, b []byte, piece func() int) (records [][]byte, err *recordError) {
	var rec []byte
	for len(b) > 0 && err == nil {
		n := min(max(piece(), 1), len(b))
		var rs [][]byte
		rs, err = cutInto(s, &rec, b[:n])
		records, b = append(records, rs...), b[n:]
	}
	return records, err
}

// cutInto runs one piece through a splitter, as Conn does. rec is the incomplete record.
func cutInto(s *splitter, rec *[]byte, p []byte) (records [][]byte, err *recordError) {
	for len(p) > 0 {
		if s.left == 0 {
			n, done, err := s.marks(p)
			if err != nil {
				return records, err
			}
			p = p[n:]
			if done {
				records, *rec = append(records, *rec), nil
			}
			continue
		}
		n := min(s.left, len(p))
		*rec = append(*rec, p[:n]...)
		p = p[n:]
		if s.advance(n) {
			records, *rec = append(records, *rec), nil
		}
	}
	return records, nil
}

func whole() int { return 1 << 30 }

// A NULL Call of NFSv3, AUTH_NONE: RFC 5531 Section 9.
const nullCall = `
	00000001 00000000   # XID, CALL
	00000002            # RPC version
	000186a3 00000003   # NFS, version 3
	00000000            # NULL
	00000000 00000000   # credential
	00000000 00000000   # verifier
`

func TestSplitterVectors(t *testing.T) {
	call := testkit.Unhex(t, nullCall)
	for _, tt := range []struct {
		name, in string
		want     [][]byte
		reason   reason
		begun    bool
	}{
		{name: "one fragment", in: `80000028` + nullCall, want: [][]byte{call}},
		{name: "two records", in: `80000028` + nullCall + `80000028` + nullCall, want: [][]byte{call, call}},
		{name: "two fragments", in: `
			00000008 00000001 00000000
			80000020 00000002 000186a3 00000003 00000000 00000000 00000000 00000000 00000000
		`, want: [][]byte{call}},
		{name: "empty fragments before, between and after", in: `
			00000000 00000000
			00000008 00000001 00000000
			00000000
			00000020 00000002 000186a3 00000003 00000000 00000000 00000000 00000000 00000000
			80000000
		`, want: [][]byte{call}},
		{name: "mark in part", in: `800000`, begun: true},
		{name: "fragment in part", in: `80000028 00000001`, begun: true},
		{name: "last fragment missing", in: `00000008 00000001 00000000`, begun: true},
		{name: "mark of 2 GiB", in: `ffffffff`, reason: reasonTooLong},
		{name: "mark of 2 GiB, more to come", in: `7fffffff`, reason: reasonTooLong},
		{name: "sum over the limit", in: `00000008 00000001 00000000 80000ff9`, reason: reasonTooLong},
		{name: "at the limit", in: `00000008 00000001 00000000 80000ff8`, begun: true},
		{name: "empty record", in: `80000000`, reason: reasonTooShort},
		{name: "short record", in: `80000007`, reason: reasonTooShort},
		{name: "short in sum", in: `00000004 00000001 80000000`, reason: reasonTooShort},
		{name: "marks at the limit", in: strings.Repeat(`00000000 `, 1023) + `80000008 00000001 00000000`, want: [][]byte{call[:8]}},
		{name: "marks over the limit", in: strings.Repeat(`00000000 `, 1025), reason: reasonFragments},
		{name: "HTTP", in: hex.EncodeToString([]byte("GET / HTTP/1.1\r\n")), reason: reasonTooLong},
		{name: "TLS ClientHello", in: `160301 0200 0100 01fc 0303`, reason: reasonTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := testkit.Unhex(t, tt.in)
			for piece := 1; piece <= len(in); piece++ {
				s := &splitter{maxRecord: 4096}
				got, err := cut(s, in, func() int { return piece })
				var reason reason
				if err != nil {
					reason = err.reason
				}
				if reason != tt.reason || len(got) != len(tt.want) || (err == nil && s.begun() != tt.begun) {
					t.Fatalf("pieces of %d: %d records, reason %q, begun %v; want %d, %q, %v",
						piece, len(got), reason, s.begun(), len(tt.want), tt.reason, tt.begun)
				}
				for i := range got {
					if !bytes.Equal(got[i], tt.want[i]) {
						t.Errorf("record %d = %x, want %x", i, got[i], tt.want[i])
					}
				}
			}
		})
	}
}

// A stream that is cut in three at any two positions has the same records.
func TestSplitterEveryPosition(t *testing.T) {
	a, b, c := pattern(8, 1), pattern(13, 2), pattern(21, 3)
	var in []byte
	in = append(in, fragment(true, a)...)
	in = append(in, fragment(false, b[:5])...)
	in = append(in, fragment(false, nil)...)
	in = append(in, fragment(true, b[5:])...)
	in = append(in, fragment(false, c)...)
	in = append(in, fragment(true, nil)...)
	for i := 0; i <= len(in); i++ {
		for j := i; j <= len(in); j++ {
			s := &splitter{maxRecord: 64}
			var got [][]byte
			var rest []byte
			for _, p := range [][]byte{in[:i], in[i:j], in[j:]} {
				rs, err := cutInto(s, &rest, p)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, rs...)
			}
			if len(got) != 3 || !bytes.Equal(got[0], a) || !bytes.Equal(got[1], b) || !bytes.Equal(got[2], c) || s.begun() {
				t.Fatalf("cut at %d and %d: %x", i, j, got)
			}
		}
	}
}

// Endless empty fragments are rejected when their marks have as many octets as a record may have, within one read.
func TestSplitterMillionFragments(t *testing.T) {
	in := make([]byte, 4<<20)
	s := &splitter{maxRecord: 4096}
	n, done, err := s.marks(in)
	if n != 4096+4 || done || err == nil || err.reason != reasonFragments {
		t.Errorf("n %d, done %v, err %v; want 4100, false, fragments", n, done, err)
	}
	var re *recordError
	if !errors.As(error(err), &re) || !strings.Contains(err.Error(), "4096") {
		t.Errorf("error %q does not name the limit", err)
	}
}

func TestSplitterAllocs(t *testing.T) {
	in := fragment(true, pattern(100, 0))
	s := &splitter{maxRecord: 4096}
	if n := testing.AllocsPerRun(1000, func() {
		k, _, _ := s.marks(in)
		s.advance(len(in) - k)
	}); n != 0 {
		t.Errorf("%v allocs per record, want 0", n)
	}
}

func BenchmarkSplitter(b *testing.B) {
	in := bytes.Repeat(fragment(true, pattern(100, 0)), 600)
	s := &splitter{maxRecord: 4096}
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		for p := in; len(p) > 0; {
			n, _, _ := s.marks(p)
			p = p[n:]
			n = s.left
			s.advance(n)
			p = p[n:]
		}
	}
}

// FuzzSplitter checks that the records do not depend on how the stream is cut, that limits
// hold, and that the records, encoded again, are the same.
func FuzzSplitter(f *testing.F) {
	for _, s := range []string{
		`80000028` + nullCall, `00000008 00000001 00000000 80000000`, `ffffffff`, `80000000`,
		`00000000 00000000 00000008 0000000100000000 80000001 ff`, `474554202f`, `8000`,
	} {
		f.Add(testkit.Unhex(f, s), []byte{1, 2, 3})
		f.Add(testkit.Unhex(f, s), []byte{200})
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		const maxRecord = 300
		s := &splitter{maxRecord: maxRecord}
		want, wantErr := cut(s, in, whole)

		s2 := &splitter{maxRecord: maxRecord}
		i := 0
		got, gotErr := cut(s2, in, func() int {
			if len(cuts) == 0 {
				return 1
			}
			i++
			return int(cuts[i%len(cuts)])
		})
		if (wantErr == nil) != (gotErr == nil) || (wantErr != nil && *wantErr != *gotErr) {
			t.Fatalf("error %v in pieces, %v in one", gotErr, wantErr)
		}
		if wantErr == nil && (s.begun() != s2.begun() || s.left != s2.left || s.size != s2.size) {
			t.Fatalf("state %+v in pieces, %+v in one", s2, s)
		}
		if len(got) != len(want) {
			t.Fatalf("%d records in pieces, %d in one", len(got), len(want))
		}
		var again []byte
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("record %d differs", i)
			}
			if len(want[i]) < minRecord || len(want[i]) > maxRecord {
				t.Fatalf("record of %d octets let through", len(want[i]))
			}
			var mark [markLen]byte
			putMark(&mark, len(want[i]))
			again = append(append(again, mark[:]...), want[i]...)
		}
		s3 := &splitter{maxRecord: maxRecord}
		back, err := cut(s3, again, whole)
		if err != nil || len(back) != len(want) {
			t.Fatalf("encoded again: %d records, %v; want %d", len(back), err, len(want))
		}
		for i := range back {
			if !bytes.Equal(back[i], want[i]) {
				t.Fatalf("record %d differs after encoding again", i)
			}
		}
	})
}
