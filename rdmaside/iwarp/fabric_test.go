package iwarp_test

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp/iwarptest"
)

// TestFabric puts the provider through the suite that every provider passes, over
// loopback sockets.
func TestFabric(t *testing.T) {
	for _, v := range []struct {
		name string
		opts iwarp.Options
	}{
		{"default", iwarp.Options{}},
		{"crcoff-max", iwarp.Options{CRCOff: true, FPDU: iwarp.FPDUMax}},
	} {
		t.Run(v.name, func(t *testing.T) {
			fabrictest.Run(t, func(t *testing.T) *fabrictest.Fixture {
				p, dial, accept := iwarp.New(v.opts), iwarptest.NewLoop(), iwarptest.NewLoop()
				t.Cleanup(dial.Stop)
				t.Cleanup(accept.Stop)
				return &fabrictest.Fixture{
					Dialer: p, Acceptor: p, DialLoop: dial, AcceptLoop: accept, Listen: "127.0.0.1:0",
				}
			})
		})
	}
}
