package testkit

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// Unhex decodes hex. White space is ignored, and so is the rest of a line after #.
func Unhex(t testing.TB, s string) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		for f := range strings.FieldsSeq(line) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%v in %q", err, s)
	}
	return b
}

// Words encodes unsigned integers as XDR does.
func Words(ws ...uint32) []byte { return AppendWords(nil, ws...) }

// AppendWords appends unsigned integers as XDR encodes them.
func AppendWords(b []byte, ws ...uint32) []byte {
	for _, w := range ws {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// AppendOpaque appends variable-length opaque data with its roundup.
func AppendOpaque(b, data []byte) []byte {
	b = append(AppendWords(b, uint32(len(data))), data...)
	return append(b, make([]byte, -len(data)&3)...)
}

// AppendPattern appends the Pattern of n octets of seed as variable-length opaque data with
// its roundup.
func AppendPattern[S byte | uint32 | int](b []byte, n int, seed S) []byte {
	b = AppendWords(b, uint32(n))
	at := len(b)
	b = slices.Grow(b, n+3)[:at+n]
	FillPattern(b[at:], seed)
	return append(b, make([]byte, -n&3)...)
}

// Pattern returns n octets that depend on seed and position, so that an octet in the
// wrong place shows.
func Pattern[S byte | uint32 | int](n int, seed S) []byte {
	b := make([]byte, n)
	FillPattern(b, seed)
	return b
}

// FillPattern fills b with the Pattern of seed.
func FillPattern[S byte | uint32 | int](b []byte, seed S) {
	x := uint64(uint32(seed))*0x9e3779b97f4a7c15 + 1
	var block [1024]byte
	for len(b) > 0 {
		x = fill(block[:min((len(b)+7)&^7, len(block))], x)
		b = b[copy(b, block[:]):]
	}
}

// fill fills b, a multiple of 8 octets, with the generator's output after x. A race
// build would report each octet to the race detector, which takes longer than the rest
// of a test that moves megabytes. FillPattern's copy reports a block at once.
//
//go:norace
func fill(b []byte, x uint64) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
	}
	return x
}
