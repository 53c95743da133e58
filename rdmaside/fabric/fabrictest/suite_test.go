package fabrictest

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

var (
	_ fabric.PlacementTracker  = (*loopbackConn)(nil)
	_ fabric.RemoteInvalidator = (*loopbackConn)(nil)
)

func openLoopback(t *testing.T) *Fixture {
	p, dial, accept := NewLoopback(), NewLoop(), NewLoop()
	t.Cleanup(dial.Stop)
	t.Cleanup(accept.Stop)
	return &Fixture{Dialer: p, Acceptor: p, DialLoop: dial, AcceptLoop: accept, Listen: "127.0.0.1:0"}
}

func TestLoopback(t *testing.T) { Run(t, openLoopback) }

func TestLoopbackAsyncInvalidate(t *testing.T) {
	Run(t, func(t *testing.T) *Fixture {
		f := openLoopback(t)
		f.Dialer.(*Loopback).AsyncInvalidate(true)
		return f
	})
}
