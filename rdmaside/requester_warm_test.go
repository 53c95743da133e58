package rdmaside

import (
	"testing"
	"testing/synctest"
)

// TestRequesterWarm: while the owner's memory is cold, it is read before Replies are handled, and never
// that of a Call which is over.
func TestRequesterWarm(t *testing.T) {
	const most = 128
	cold := false
	warmed, over := map[uint32]bool{}, map[uint32]bool{}
	requesterTest(t, func(tc *requesterCase) {
		tc.opts.Cold = func() bool { return cold }
		tc.opts.Credits, tc.opts.Warm = most, func(c *Call) uint8 {
			warmed[c.XID] = true
			if over[c.XID] {
				tc.t.Errorf("the memory of Call %d is read when it is over", c.XID)
			}
			return 1
		}
	}, func(tc *requesterCase) {
		tc.onDone = func(c *Call, _ *CallError) { over[c.XID] = true }
		answered := func(first, n uint32) {
			for i := range n {
				tc.send(getAttrCall(first + i))
				tc.peer.wantSend("GETATTR")
			}
			for i := range n {
				tc.peer.send(0, plain(first+i, most), accepted(first+i, pattern(100, 7)))
				tc.peer.send(0, plain(first+i, most), accepted(first+i, pattern(100, 7))) // a second answer
			}
			synctest.Wait()
			if len(tc.done) != int(n) {
				t.Fatalf("%d of %d Calls are over", len(tc.done), n)
			}
			tc.done = nil
		}
		answered(1, 1)
		answered(100, most)
		if len(warmed) > 0 {
			t.Errorf("the memory of %d Calls is read although it is in the cache", len(warmed))
		}
		cold = true
		answered(1000, most)
		if len(warmed) == 0 {
			t.Error("no Call's memory is read")
		}
	})
}
