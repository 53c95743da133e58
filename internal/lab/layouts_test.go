//go:build lab

package lab

import (
	"syscall"
	"testing"
	"time"
)

// testLayouts has a server that gives pNFS layouts, and checks that the client knows of them, and not
// with layouts: hide. A reload applies the setting to the next mount.
func testLayouts(t *testing.T, g *guest, b *bridgeProcess, far farEnd) {
	const storage = "  - name: storage\n    transport: rdma\n"
	reload := func(before, after string) {
		t.Helper()
		applied := b.metric(t, `config_reloads_total{result="applied"}`)
		b.configure(t, before, after)
		if err := b.process.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		waitFor(t, 30*time.Second, "the reload", func() bool {
			return b.metric(t, `config_reloads_total{result="applied"}`) == applied+1
		})
	}
	check := func(layouts string) {
		t.Helper()
		g.job(t, time.Minute, "LAYOUTS="+layouts+" "+far.script("/lab/layouts.sh", "4.1"))
		g.job(t, time.Minute, "LAYOUTS="+layouts+" "+far.script("/lab/layouts.sh", "4.2"))
	}
	check("pass")
	reload(storage, storage+"    layouts: hide\n")
	check("hide")
	reload(storage+"    layouts: hide\n", storage)
	check("pass")
	b.wantNoErrors(t)
}
