//go:build lab

package main

import (
	"testing"
	"time"
)

// testRecall: knfsd gives a delegation to a client that has a connection of its own
// behind the bridge, and gets it back through the back channel at once.
func testRecall(t *testing.T, g *guest, b *bridgeProcess, far farEnd, vers string) {
	count := func() (calls, replies float64) {
		return b.metric(t, "requester_reverse_calls_total{"), b.metric(t, "requester_reverse_replies_total{")
	}
	calls, replies := count()
	t.Log(g.job(t, 3*time.Minute, far.script("IDLE=20 /lab/recall.sh", vers)))
	calls2, replies2 := count()
	if calls2 == calls || replies2-replies != calls2-calls {
		t.Errorf("%.0f reverse Calls and %.0f Replies, want as many, and some", calls2-calls, replies2-replies)
	}
	if n := b.metric(t, `upstream_pinned_connections{upstream="storage"}`); n != 0 {
		t.Errorf("%.0f connections still pinned though nothing is mounted", n)
	}
}
