package rpcrdma

import (
	"bytes"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

func TestPrivateData(t *testing.T) {
	for _, test := range []struct {
		hex  string
		want PrivateData
	}{
		// The private data of the Linux client and of the Linux server.
		{"f6ab0e18 01 01 03 03", PrivateData{true, 4096, 4096}},
		{"f6ab0e18 01 00 03 03", PrivateData{false, 4096, 4096}},
		{"f6ab0e18 01 00 00 ff", PrivateData{false, 1024, 262144}},
		{"f6ab0e18 01 01 0f 3f", PrivateData{true, 16384, 65536}},
	} {
		b := testkit.Unhex(t, test.hex)
		if got, ok := FindPrivateData(b); !ok || got != test.want {
			t.Errorf("%s: %+v, %v", test.hex, got, ok)
		}
		if got := AppendPrivateData(nil, test.want); !bytes.Equal(got, b) {
			t.Errorf("%+v: %x, want %s", test.want, got, test.hex)
		}
	}
}

func TestPrivateDataSizes(t *testing.T) {
	for _, test := range []struct{ size, want int }{
		{-1, 1024},
		{0, 1024},
		{1023, 1024},
		{1024, 1024},
		{2047, 1024},
		{2048, 2048},
		{262144, 262144},
		{262145, 262144},
		{1 << 30, 262144},
	} {
		p, ok := FindPrivateData(AppendPrivateData(nil, PrivateData{SendSize: test.size, RecvSize: test.size}))
		if !ok || p.SendSize != test.want || p.RecvSize != test.want {
			t.Errorf("%d: %+v, %v; want %d", test.size, p, ok, test.want)
		}
	}
}

func TestFindPrivateData(t *testing.T) {
	none := PrivateData{SendSize: 1024, RecvSize: 1024}
	want := PrivateData{true, 2048, 3072}
	whole := AppendPrivateData(nil, want)
	for offset := range 9 {
		b := append(append(make([]byte, offset), whole...), 1, 2, 3)
		if got, ok := FindPrivateData(b); !ok || got != want {
			t.Errorf("at offset %d: %+v, %v", offset, got, ok)
		}
	}
	for i := range whole {
		if got, ok := FindPrivateData(whole[:i]); ok || got != none {
			t.Errorf("%d octets: %+v, %v", i, got, ok)
		}
	}
	for name, hex := range map[string]string{
		"nothing":               "",
		"other magic":           "f6ab0e19 01010101",
		"version 2":             "f6ab0e18 02010101",
		"version 0":             "f6ab0e18 00010101",
		"magic again and again": "f6ab0e18 f6ab0e18 f6ab0e18",
	} {
		if got, ok := FindPrivateData(testkit.Unhex(t, hex)); ok || got != none {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	// The reserved bits are ignored, and other octets may come before the private
	// data.
	for _, hex := range []string{
		"f6ab0e18 01 ff 01 02",
		"f6ab0e18 02 00 00 00 f6ab0e18 01 01 01 02",
		"f6ab f6ab0e18 01 01 01 02",
		"00100010 f6ab0e18 01 01 01 02", // behind the block of MPA, RFC 6581
	} {
		if got, ok := FindPrivateData(testkit.Unhex(t, hex)); !ok || got != want {
			t.Errorf("%s: %+v, %v", hex, got, ok)
		}
	}
}

func TestInline(t *testing.T) {
	us := PrivateData{SendSize: 4096, RecvSize: 16384}
	linux := PrivateData{SendSize: 4096, RecvSize: 4096}
	silent, _ := FindPrivateData(nil)
	for _, test := range []struct {
		from, to PrivateData
		want     int
	}{
		{us, linux, 4096},
		{linux, us, 4096},
		{us, silent, 1024},
		{silent, us, 1024},
		{PrivateData{SendSize: 65536}, us, 16384},
		{PrivateData{}, PrivateData{}, 1024},
	} {
		if got := Inline(test.from, test.to); got != test.want {
			t.Errorf("Inline(%+v, %+v) = %d, want %d", test.from, test.to, got, test.want)
		}
	}
}

func FuzzPrivateData(f *testing.F) {
	f.Add(AppendPrivateData(nil, PrivateData{true, 4096, 4096}))
	f.Add([]byte{0xf6, 0xab, 0x0e, 0x18, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := FindPrivateData(b)
		if p.SendSize < 1024 || p.SendSize > MaxInline || p.SendSize%1024 != 0 || p.RecvSize < 1024 || p.RecvSize > MaxInline || p.RecvSize%1024 != 0 {
			t.Fatalf("%+v", p)
		}
		if again, found := FindPrivateData(AppendPrivateData(nil, p)); !found || again != p {
			t.Fatalf("%+v became %+v", p, again)
		}
		if !ok && (p.RemoteInvalidation || p.SendSize != 1024 || p.RecvSize != 1024) {
			t.Fatalf("%+v from nothing", p)
		}
	})
}
