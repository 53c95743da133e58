package fabrictest

import (
	"context"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// pattern returns n octets that depend on seed and position.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	fillPattern(b, seed)
	return b
}

func fillPattern(b []byte, seed byte) {
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

// copyOf copies b to memory of the fixture.
func (f *Fixture) copyOf(b []byte) []byte {
	m := f.alloc(len(b))
	copy(m, b)
	return m
}

// A Fixture has the providers and loops for one test of the suite.
type Fixture struct {
	// Dialer and Acceptor may be the same provider.
	Dialer, Acceptor     fabric.Provider
	DialLoop, AcceptLoop loop.Loop

	// Listen is the address to listen at: "127.0.0.1:0".
	Listen string
	// Dial returns the address that reaches a listener; nil dials Listener.Addr.
	Dial func(fabric.Listener) string

	// Alloc makes the memory that is given to connections; nil uses make.
	Alloc func(n int) []byte

	// MaxTransfer bounds a single Read or Write of the suite in octets; default
	// 4 MiB.
	MaxTransfer int
}

func (f *Fixture) alloc(n int) []byte {
	if f.Alloc == nil {
		return make([]byte, n)
	}
	return f.Alloc(n)
}

func (f *Fixture) maxTransfer() int {
	if f.MaxTransfer == 0 {
		return 4 << 20
	}
	return f.MaxTransfer
}

func (f *Fixture) dialAddr(l fabric.Listener) string {
	if f.Dial == nil {
		return l.Addr().String()
	}
	return f.Dial(l)
}

func (f *Fixture) listen(t *testing.T, o fabric.ListenOptions, incoming func(fabric.Incoming)) fabric.Listener {
	t.Helper()
	l, err := f.Acceptor.Listen(f.Listen, o, incoming)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial dials l with h and returns the error.
func (f *Fixture) dial(l fabric.Listener, o fabric.ConnOptions, h fabric.Handler) (fabric.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f.Dialer.Dial(ctx, f.DialLoop, f.dialAddr(l), o, h)
}
