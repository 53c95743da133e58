//go:build lab

package lab

import (
	"strings"
	"testing"
	"time"
)

// testLocks3: clients of NFSv3 lock through the lock manager of a bridge in the guest, as guest/locks3.sh says. With
// RDMABRIDGE_LAB_FULL=1 the server restarts, too, and each time its grace period takes a minute.
func testLocks3(t *testing.T, g *guest) {
	steps := "contend killed handover crash"
	if labFull() {
		steps += " restart both"
	}
	g.put(t, bridgeBinary(t), "rdmabridge")
	out := g.job(t, 10*time.Minute, "STEPS='"+steps+"' /lab/locks3.sh")
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "granted ") || strings.HasPrefix(line, "step ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
