//go:build lab

package lab

import (
	"strings"
	"testing"
	"time"
)

// testLocks3: clients of NFSv3 lock through the lock manager of a bridge in the guest, as guest/locks3.sh says. With
// RDMABRIDGE_LAB_FULL=1 clients contend while the bridge is killed again and again, too, and the server restarts, each time with
// a grace period of a minute.
func testLocks3(t *testing.T, g *guest) {
	steps, kills := "contend mountudp killed handover rdma crash", ""
	if labFull() {
		steps += " torture restart both chain"
		kills = "KILLS='15 2' "
	}
	g.put(t, bridgeBinary(t), "rdmabridge")
	out := g.job(t, 25*time.Minute, kills+"STEPS='"+steps+"' /lab/locks3.sh")
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "granted ") || strings.HasPrefix(line, "step ") || strings.HasPrefix(line, "client ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
