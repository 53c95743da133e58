package iwarp_test

import (
	"testing"
	"time"

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
				o := v.opts
				o.DialTimeout, o.AcceptTimeout, o.ProgressTimeout = 10*time.Second, 5*time.Second, 30*time.Second
				p, err := iwarp.New(o)
				if err != nil {
					t.Fatal(err)
				}
				dial, accept := iwarptest.NewLoop(), iwarptest.NewLoop()
				t.Cleanup(dial.Stop)
				t.Cleanup(accept.Stop)
				return &fabrictest.Fixture{
					Dialer: p, Acceptor: p, DialLoop: dial, AcceptLoop: accept, Listen: "127.0.0.1:0",
				}
			})
		})
	}
}
