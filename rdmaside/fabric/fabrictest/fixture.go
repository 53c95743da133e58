package fabrictest

import (
	"context"
	"slices"
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

	// Memory makes memory for the tests that register some, cleared. nil means make.
	Memory func(n int) []byte

	// Passing reports whether an error of Listen, Dial or Accept is the device's or the kernel's, and passes:
	// then the suite tries again. nil means that none is.
	Passing func(error) bool

	// Diverges lists the promises of package fabric that the device under the provider cannot
	// keep. A promise that is listed here and kept fails the test, too.
	Diverges []Divergence
	// Stranger is another provider of the kind of Dialer, with other peers. It must be set with
	// SharedHandles.
	Stranger fabric.Provider
}

// A Divergence is a promise that some devices cannot keep.
type Divergence string

// The divergences.
const (
	// SharedHandles: a handle is valid on all connections of its provider, and on no
	// connection of another.
	SharedHandles Divergence = "a handle is valid on every connection of its provider"
	// AddressOffsets: the offset of registered memory is its address.
	AddressOffsets Divergence = "offsets are addresses"
	// WeakRights: a peer can read memory that is registered for writing only.
	WeakRights Divergence = "memory registered for RemoteWrite can be read"
	// ForeignInvalidation: a peer can invalidate handles of other connections.
	ForeignInvalidation Divergence = "handles of other connections can be invalidated"
	// PaddedPrivateData: private data have at most 56 octets to the listener and 196 back, and
	// arrive with zeros behind them.
	PaddedPrivateData Divergence = "private data are padded, and at most 56 and 196 octets"
)

// retries is how often the suite tries again after an error that passes.
const retries = 3

// passes reports whether to try again after err.
func (f *Fixture) passes(err error) bool { return err != nil && f.Passing != nil && f.Passing(err) }

func (f *Fixture) diverges(d Divergence) bool { return slices.Contains(f.Diverges, d) }

// memory returns n octets, cleared.
func (f *Fixture) memory(n int) []byte {
	if f.Memory == nil {
		return make([]byte, n)
	}
	return f.Memory(n)
}

// clone returns a copy of b.
func (f *Fixture) clone(b []byte) []byte {
	m := f.memory(len(b))
	copy(m, b)
	return m
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
	for n := 0; n < retries && f.passes(err); n++ {
		t.Logf("listened again after: %v", err)
		l, err = f.Acceptor.Listen(f.Listen, withLimits(o), incoming)
	}
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
