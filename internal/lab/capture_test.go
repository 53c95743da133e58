//go:build lab

package lab

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tshark"
)

// testCapture captures READs and WRITEs of the Linux client, whose data move by RDMA between the bridge
// and knfsd on siw, and callbacks. tshark decodes all of it, and finds the same data on both legs and in
// both directions.
func testCapture(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	testkit.Needs(t, "tshark")
	capture := func(run func()) ([]tshark.Packet, int) {
		file := filepath.Join(t.TempDir(), "lab.pcapng")
		stop := b.startCapture(t, "-w", file, "--payload", "--buffer", "256MiB")
		run()
		if s := stop(); strings.Contains(s, "missing") {
			t.Error(s)
		}
		return tshark.Decode(t, file)
	}
	for _, v := range []string{"3", "4.1"} {
		packets, calls := capture(func() { g.job(t, 2*time.Minute, far.script("/lab/chunks.sh", v)) })
		data := map[string]map[string]int{} // how often each 4 KiB of data are there, by direction and leg
		for _, p := range packets {
			if p.Data == "" {
				continue
			}
			key := map[string]string{"0": "WRITE", "1": "READ"}[p.Kind] + " on interface " + p.Leg
			if data[key] == nil {
				data[key] = map[string]int{}
			}
			// READs may be shorter than WRITEs, and overtake each other.
			for _, d := range strings.Split(p.Data, ";") {
				for ; len(d) >= 8192; d = d[8192:] {
					data[key][d[:8192]]++
				}
			}
		}
		want := data["WRITE on interface 0"]
		octets := 0
		for d, n := range want {
			octets += n * len(d) / 2
		}
		if octets != 64*8<<10+16*64<<10+4<<20 || len(data) != 4 {
			t.Errorf("NFS %s: %d octets of WRITEs, in %v", v, octets, slices.Sorted(maps.Keys(data)))
		}
		for key, got := range data {
			if !maps.Equal(got, want) {
				t.Errorf("NFS %s: the data of %s are not those of WRITE on interface 0", v, key)
			}
		}
		t.Logf("NFS %s: %d Calls, %d octets of data", v, calls, octets)
	}
	packets, calls := capture(func() { g.job(t, 3*time.Minute, far.script("IDLE=1 /lab/recall.sh", "4.1")) })
	recalls := map[string]int{}
	for _, p := range packets {
		if p.Kind == "0" && slices.Contains(strings.Split(p.Callbacks, ";"), "4") {
			recalls[p.Leg]++
		}
	}
	if recalls["0"] < 3 || recalls["1"] != recalls["0"] {
		t.Errorf("CB_RECALLs by interface: %v, want 3 or more on both", recalls)
	}
	t.Logf("recalls: %d Calls, %v CB_RECALLs", calls, recalls)
}
