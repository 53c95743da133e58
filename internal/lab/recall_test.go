//go:build lab

package lab

import (
	"cmp"
	"os"
	"strconv"
	"testing"
	"time"
)

// testRecall: knfsd gives delegations to clients that share a connection, and recalls them
// through the back channel at once.
func testRecall(t *testing.T, g *guest, b *bridgeProcess, far farEnd, vers string) {
	idle := cmp.Or(os.Getenv("RDMABRIDGE_LAB_IDLE"), "20")
	seconds, err := strconv.Atoi(idle)
	if err != nil {
		t.Fatalf("RDMABRIDGE_LAB_IDLE: %v", err)
	}
	before := b.reverse(t)
	t.Log(g.job(t, 2*time.Minute+time.Duration(seconds)*time.Second, far.script("IDLE="+idle+" /lab/recall.sh", vers)))
	b.wantQuiet(t)
	b.wantReverse(t, before, 3) // one recall, and one Call to each of two clients
	b.wantNoSessions(t, "storage")
}
