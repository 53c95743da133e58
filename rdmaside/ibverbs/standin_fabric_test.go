//go:build ibverbs

package ibverbs_test

import (
	"os"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric/fabrictest"
	"github.com/rdmabridge/rdmabridge/rdmaside/ibverbs"
)

// TestStandIn puts the provider through the suite that every provider passes, on the device in
// memory of testdata/standin.c. mlx5_core stands for a driver whose windows are trusted.
func TestStandIn(t *testing.T) {
	if os.Getenv("RDMABRIDGE_VERBS") != "" {
		t.Skip("TestFabric runs the suite on the device")
	}
	for _, tt := range []struct {
		driver   string
		exposure ibverbs.Exposure
		diverges []fabrictest.Divergence
	}{
		{"rxe", ibverbs.ExposeAuto, []fabrictest.Divergence{fabrictest.SharedHandles}},
		{"rxe", ibverbs.ExposeWindows, []fabrictest.Divergence{fabrictest.ForeignInvalidation}},
		{"mlx5_core", ibverbs.ExposeAuto, nil},
	} {
		t.Run(tt.driver+"/"+tt.exposure.String(), func(t *testing.T) {
			ibverbs.Pretend(t, tt.driver)
			runSuite(t, "127.0.0.1", tt.exposure, append(tt.diverges, fabrictest.PaddedPrivateData))
			ibverbs.NoObjects(t)
		})
	}
}

// TestStandInIPv6 puts the provider through the suite at an IPv6 address.
func TestStandInIPv6(t *testing.T) {
	if os.Getenv("RDMABRIDGE_VERBS") != "" {
		t.Skip("TestFabric runs the suite on the device")
	}
	runSuite(t, "[::1]", ibverbs.ExposeAuto, []fabrictest.Divergence{fabrictest.SharedHandles, fabrictest.PaddedPrivateData})
	ibverbs.NoObjects(t)
}
