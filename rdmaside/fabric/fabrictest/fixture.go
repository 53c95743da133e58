package fabrictest

import (
	"context"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A Fixture has the providers and loops for one test of the suite.
type Fixture struct {
	// Dialer and Acceptor may be the same provider.
	Dialer, Acceptor     fabric.Provider
	DialLoop, AcceptLoop loop.Loop

	// Listen is the address to listen at: "127.0.0.1:0".
	Listen string
}

// NoLimits are ListenOptions without limits.
func NoLimits() fabric.ListenOptions {
	return fabric.ListenOptions{MaxConnections: -1, MaxStarting: -1, MaxStartingPerAddr: -1}
}

// withLimits sets the limits of o that are not set.
func withLimits(o fabric.ListenOptions) fabric.ListenOptions {
	set := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&o.MaxConnections, 1024)
	set(&o.MaxStarting, 128)
	set(&o.MaxStartingPerAddr, 16)
	return o
}

// listen listens with o, and with limits where o sets none.
func (f *Fixture) listen(t *testing.T, o fabric.ListenOptions, incoming func(fabric.Incoming)) fabric.Listener {
	t.Helper()
	l, err := f.Acceptor.Listen(f.Listen, withLimits(o), incoming)
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
	return f.Dialer.Dial(ctx, f.DialLoop, l.Addr().String(), o, h)
}
