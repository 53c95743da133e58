package eventloop

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// startLoops starts a group of n loops that stops at the end of the test.
func startLoops(t testing.TB, n int) *Group {
	t.Helper()
	g, err := Start(Options{Loops: n, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(func() {}); err != nil {
			t.Error(err)
		}
	})
	return g
}

// reset reports whether err says that the peer has reset a connection.
func reset(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }
