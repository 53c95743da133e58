package xdr

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

func TestRoundup(t *testing.T) {
	for n, want := range []int{0, 4, 4, 4, 4, 8, 8, 8, 8} {
		if got := Roundup(n); got != want {
			t.Errorf("Roundup(%d) = %d, want %d", n, got, want)
		}
		if got := n + Padding(n); got != want {
			t.Errorf("%d + Padding(%d) = %d, want %d", n, n, got, want)
		}
	}
}

// message returns one item of every kind, with opaques of all four residues.
func message() []byte {
	b := AppendUint32(nil, 0x01020304)
	b = AppendUint64(b, 0x05060708090a0b0c)
	for n := range 5 {
		b = AppendOpaque(b, bytes.Repeat([]byte{0xee}, n))
	}
	return append(b, "12345\x00\x00\x00"...) // opaque[5]
}

func walk(c *Cursor) {
	c.Uint32()
	c.Uint64()
	for range 5 {
		c.Opaque()
	}
	c.Skip(8)
}

func TestCursor(t *testing.T) {
	m := message()
	c := NewCursor(m, 0)
	if v := c.Uint32(); v != 0x01020304 {
		t.Errorf("Uint32 = %#x", v)
	}
	if v := c.Uint64(); v != 0x05060708090a0b0c {
		t.Errorf("Uint64 = %#x", v)
	}
	for want := range 5 {
		pos, n := c.Opaque()
		if n != want || !bytes.Equal(m[pos:pos+n], bytes.Repeat([]byte{0xee}, n)) {
			t.Errorf("Opaque = %d, %d; want length %d", pos, n, want)
		}
		if c.Pos() != pos+Roundup(n) {
			t.Errorf("after an opaque of %d at %d: Pos = %d", n, pos, c.Pos())
		}
	}
	c.Skip(8)
	if !c.OK() || c.Err() != nil || c.Len() != 0 || c.Pos() != len(m) {
		t.Errorf("at the end: OK %v, Len %d, Pos %d of %d", c.OK(), c.Len(), c.Pos(), len(m))
	}
}

func TestCursorTruncated(t *testing.T) {
	m := message()
	for n := range m {
		c := NewCursor(m[:n:n], 0)
		walk(&c)
		if c.OK() || !errors.Is(c.Err(), ErrShort) || c.Len() != 0 {
			t.Errorf("prefix of %d octets: OK %v, Err %v, Len %d", n, c.OK(), c.Err(), c.Len())
		}
		pos := c.Pos()
		if c.Uint32() != 0 || c.Uint64() != 0 || c.Pos() != pos || pos > n {
			t.Errorf("prefix of %d octets: failure is not sticky at %d", n, pos)
		}
	}
}

func TestCursorBounds(t *testing.T) {
	word := func(v uint32) []byte { return append(AppendUint32(nil, v), make([]byte, 16)...) }
	for _, tt := range []struct {
		name string
		b    []byte
		do   func(*Cursor)
		ok   bool
	}{
		{"opaque of 4 GiB", word(math.MaxUint32), func(c *Cursor) { c.Opaque() }, false},
		{"opaque whose roundup wraps", word(math.MaxUint32 - 2), func(c *Cursor) { c.Opaque() }, false},
		{"opaque without roundup", word(16)[:19], func(c *Cursor) { c.Opaque() }, false},
		{"opaque whose roundup is cut", append(AppendUint32(nil, 5), make([]byte, 7)...), func(c *Cursor) { c.Opaque() }, false},
		{"negative skip", word(0), func(c *Cursor) { c.Skip(-1) }, false},
		{"array of 2^32-1", word(0), func(c *Cursor) { c.SkipArray(math.MaxUint32, 12) }, false},
		{"array that wraps 32 bits", word(0), func(c *Cursor) { c.SkipArray(1<<30, 4) }, false},
		{"array that fits", word(0), func(c *Cursor) { c.SkipArray(5, 4) }, true},
		{"array one too long", word(0), func(c *Cursor) { c.SkipArray(6, 4) }, false},
		{"array of nothing", word(0), func(c *Cursor) { c.SkipArray(0, 0) }, false},
	} {
		c := NewCursor(tt.b, 0)
		tt.do(&c)
		if c.OK() != tt.ok {
			t.Errorf("%s: OK = %v, want %v", tt.name, c.OK(), tt.ok)
		}
	}
	for _, pos := range []int{-1, 5} {
		if c := NewCursor(make([]byte, 4), pos); c.OK() {
			t.Errorf("NewCursor at %d of 4 octets did not fail", pos)
		}
	}
}

// FuzzCursor drives a Cursor by a script of which each octet is a method.
func FuzzCursor(f *testing.F) {
	f.Add(message(), []byte{0, 1, 2, 2, 2, 2, 2, 3, 3})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, []byte{2, 4, 0})
	f.Fuzz(func(t *testing.T, m, script []byte) {
		c := NewCursor(m, 0)
		for _, op := range script {
			was, before := c.OK(), c.Pos()
			switch op % 5 {
			case 0:
				if v := c.Uint32(); c.OK() && v != binary.BigEndian.Uint32(m[before:]) {
					t.Fatalf("Uint32 at %d = %d", before, v)
				}
			case 1:
				c.Uint64()
			case 2:
				pos, n := c.Opaque()
				if c.OK() && (pos != before+4 || pos+Roundup(n) != c.Pos()) {
					t.Fatalf("Opaque at %d = %d, %d; Pos %d", before, pos, n, c.Pos())
				}
			case 3:
				c.Skip(int(op) - 5)
			case 4:
				c.SkipArray(uint32(op)<<24|uint32(op), 12)
			}
			if c.Pos() < before || c.Pos() > len(m) {
				t.Fatalf("Pos moved from %d to %d of %d", before, c.Pos(), len(m))
			}
			if !c.OK() && c.Pos() != before {
				t.Fatalf("Pos moved from %d to %d by a failure", before, c.Pos())
			}
			if !was && c.OK() {
				t.Fatal("a failure went away")
			}
		}
	})
}

func TestAllocs(t *testing.T) {
	m := message()
	if n := testing.AllocsPerRun(100, func() {
		c := NewCursor(m, 0)
		walk(&c)
		if !c.OK() {
			t.Fatal("walk failed")
		}
	}); n != 0 {
		t.Errorf("a walk allocates %v times", n)
	}
}

func BenchmarkCursor(b *testing.B) {
	m := message()
	b.SetBytes(int64(len(m)))
	b.ReportAllocs()
	for b.Loop() {
		c := NewCursor(m, 0)
		walk(&c)
		if !c.OK() {
			b.Fatal("walk failed")
		}
	}
}
