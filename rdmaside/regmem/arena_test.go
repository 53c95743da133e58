package regmem

import "testing"

func TestLeaseAllocs(t *testing.T) {
	a, err := New(Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 512, 513, 4096, 4608, 65536, 1 << 20, MaxLease} {
		l, err := a.Lease(n)
		if err != nil {
			t.Fatal(n, err)
		}
		if len(l.Bytes()) != n {
			t.Fatal(n, len(l.Bytes()))
		}
		l.Release()
	}
	if a.Used() != 0 || a.Outstanding() != 0 {
		t.Fatal(a.Stats())
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkLease(b *testing.B) {
	a, err := New(Options{Budget: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		l, _ := a.Lease(4096)
		l.Release()
	}
}
