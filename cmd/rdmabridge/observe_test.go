package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestAccessLog: a reload switches the access log on and off, each answered Call has a line, and SIGHUP
// opens the file again.
func TestAccessLog(t *testing.T) {
	s := startSlowServer(t)
	path := filepath.Join(t.TempDir(), "access.log")
	text := slowConfig(s, "1m")
	with := func(mode string) string {
		return text + fmt.Sprintf("log: {access: {mode: %s, slower: 1h, path: %s}}\n", mode, path)
	}
	x := startReload(t, text)
	c, err := net.Dial("tcp", x.b.proxy.Addr("nfs"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	xid := uint32(100)
	call := func() {
		t.Helper()
		xid++
		if err := testkit.WriteRecord(c, nullCall(xid, 100003, 3)); err != nil {
			t.Fatal(err)
		}
		s.answer <- struct{}{}
		if _, err := testkit.ReadRecord(c); err != nil {
			t.Fatal(err)
		}
		// The client may have the Reply before the bridge is done with the Call. A reload between the two
		// would have the Call logged.
		testkit.Eventually(t, fmt.Sprintf("Call %d is over", xid), func() bool {
			clients := x.b.proxy.Status(status.Query{}).Clients.List
			return len(clients) == 1 && clients[0].Phases.Calls == uint64(xid-100)
		})
	}
	lines := func(path string) (xids []uint32) {
		b, _ := os.ReadFile(path)
		for line := range bytes.Lines(b) {
			var l struct {
				Event, Listener, Upstream, Operation, Chosen string
				XID                                          uint32
			}
			if err := json.Unmarshal(line, &l); err != nil || l.Event != "call" || l.Listener != "nfs" || l.Upstream == "" || l.Operation != "NULL" || l.Chosen != "all" {
				t.Errorf("line %s: %v", line, err)
			}
			xids = append(xids, l.XID)
		}
		return xids
	}
	has := func(path string, want ...uint32) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%s has %v", path, want), func() bool { return fmt.Sprint(lines(path)) == fmt.Sprint(want) })
	}
	call() // the access log is off
	x.reload(with("all"), `"setting":"log.access.mode","old":"off","new":"all"`)
	call()
	has(path, 102)
	must(t, os.Rename(path, path+".1"))
	x.signals <- syscall.SIGHUP
	testkit.Eventually(t, "the file is there again", func() bool { _, err := os.Stat(path); return err == nil })
	call()
	has(path, 103)
	has(path+".1", 102)
	x.reload(with("failed"), `"old":"all","new":"failed"`)
	call()
	x.reload(with("all"), `"old":"failed","new":"all"`)
	call()
	has(path, 103, 105)
	x.reload(strings.Replace(with("all"), path, filepath.Join(path, "x"), 1), refused)
	call()
	has(path, 103, 105, 106) // the old settings are in force
	x.reload(text, `"setting":"log.access.mode","old":"all","new":"off"`)
	call()
	x.metric("rdmabridge_access_log_lines_total 4")
	c.Close()
	x.stop()
	has(path, 103, 105, 106)
}
