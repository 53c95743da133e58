package rdmaside

import (
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// What a Requester tallies is in its metrics after each pass, and after the connection's end at
// the latest.
func TestRequesterTally(t *testing.T) {
	requesterTest(t, func(tc *requesterCase) { tc.opts.Take = nil }, func(tc *requesterCase) {
		m, call, reply := tc.opts.Metrics, getAttrCall(1), getAttrReply(1)
		want := func(why string, calls, received, copied int) {
			t.Helper()
			synctest.Wait()
			if n := m.calls[ulb.CallInline][ulb.ReplyInline].Value(); n != uint64(calls) {
				t.Errorf("%s: %d calls, want %d", why, n, calls)
			}
			if n := m.octetsSent.Value(); n != uint64(calls*len(call)) {
				t.Errorf("%s: %d octets of %d calls, want %d each", why, n, calls, len(call))
			}
			if n := m.octetsReceived.Value(); n != uint64(received) {
				t.Errorf("%s: %d octets received, want %d", why, n, received)
			}
			if n := m.copied.Value(); n != uint64(copied) {
				t.Errorf("%s: %d octets copied, want %d", why, n, copied)
			}
		}
		answer := append(plain(1, 8), reply...)
		tc.send(call)
		tc.peer.wantSend("a call")
		want("the Send has completed", 1, 0, 0)
		tc.peer.send(0, answer)
		tc.wantReply("answered", reply)
		want("the Reply has come", 1, len(answer), len(reply))
		tc.loop.Do(func() {
			c := &Call{Message: tc.lend(getAttrCall(2)), Owner: tc, XID: 2, Binding: ulb.Generic}
			c.Analysis.Known, c.Analysis.MaxReply = true, 112
			if err := tc.r.Send(c); err != nil {
				t.Errorf("Send: %v", err)
			}
			tc.r.Close(nil)
		})
		want("the connection has ended before a pass", 2, len(answer), len(reply))
	})
}
