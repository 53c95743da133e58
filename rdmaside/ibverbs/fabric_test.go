//go:build ibverbs

package ibverbs_test

import (
	"os"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/ibverbs"
)

// TestFabric puts the provider through the suite that every provider passes, over the device whose
// address is in RDMABRIDGE_VERBS; RDMABRIDGE_VERBS_DRIVER is its driver, rxe or siw. TestLabVerbs of
// cmd/rdmabridge runs it in the guest of deploy/lab.
func TestFabric(t *testing.T) {
	addr, driver := os.Getenv("RDMABRIDGE_VERBS"), os.Getenv("RDMABRIDGE_VERBS_DRIVER")
	if addr == "" {
		t.Skip("needs an RDMA device: set RDMABRIDGE_VERBS to its address")
	}
	diverges := map[string][]fabrictest.Divergence{
		"rxe": {fabrictest.SharedHandles, fabrictest.PaddedPrivateData},
		"siw": {fabrictest.SharedHandles, fabrictest.AddressOffsets, fabrictest.WeakRights},
	}[driver]
	runSuite(t, addr, diverges)
}

// runSuite runs the suite at an address.
func runSuite(t *testing.T, addr string, diverges []fabrictest.Divergence) {
	fabrictest.Run(t, func(t *testing.T) *fabrictest.Fixture {
		dial, accept := fabrictest.NewLoop(), fabrictest.NewLoop()
		t.Cleanup(dial.Stop)
		t.Cleanup(accept.Stop)
		return &fabrictest.Fixture{
			Dialer: newProvider(t), Acceptor: newProvider(t), Stranger: newProvider(t),
			DialLoop: dial, AcceptLoop: accept, Listen: addr + ":0", Diverges: diverges,
		}
	})
}

func newProvider(t *testing.T) fabric.Provider {
	t.Helper()
	p, err := ibverbs.New(ibverbs.Options{DialTimeout: 15 * time.Second, AcceptTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
