//go:build ibverbs

package ibverbs_test

import (
	"os"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
)

// TestStandIn puts the provider through the suite that every provider passes, on the device in
// memory of testdata/standin.c.
func TestStandIn(t *testing.T) {
	if os.Getenv("RDMABRIDGE_VERBS") != "" {
		t.Skip("TestFabric runs the suite on the device")
	}
	runSuite(t, "127.0.0.1", []fabrictest.Divergence{fabrictest.SharedHandles, fabrictest.PaddedPrivateData})
}
