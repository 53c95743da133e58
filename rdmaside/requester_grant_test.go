package rdmaside

import (
	"slices"
	"testing"
)

// TestGrantOfNewestReply: a Reply raises the grant once all of it is found valid, here after its Call's Send has
// completed, and only if no newer Reply has come by then. The Watcher hears of each change.
func TestGrantOfNewestReply(t *testing.T) {
	a := newTestArena(t)
	w := &grantLog{}
	r := newStubRequester(t, a.Account("replies", 16<<20), nil)
	r.watcher = w
	send := func(xid uint32) {
		t.Helper()
		if err := r.Send(prepare(t, r.Requester, getAttrCall(xid), &discard{})); err != nil {
			t.Fatalf("Send of call %d: %v", xid, err)
		}
	}
	answer := func(xid, credits uint32) {
		r.conn.deliver(append(plain(xid, credits), getAttrReply(xid)...), 0)
	}
	want := func(why string, grant int) {
		t.Helper()
		if n := r.Grant(); n != grant {
			t.Errorf("%s: grant %d, want %d", why, n, grant)
		}
	}
	send(1)
	answer(1, 3)
	want("the Send has not completed", 1)
	r.conn.step()
	want("the first valid Reply", 3)

	send(2)
	send(3)
	send(4)
	answer(2, 16)
	answer(3, 8)
	want("two Replies that are not known to be valid", 3)
	answer(4, 2)
	want("a lower grant takes effect at once", 2)
	r.conn.step()
	want("the newest Reply decides", 2)
	if !slices.Equal(w.grants, []int{3, 2}) {
		t.Errorf("the Watcher heard of %v, want 3 and 2", w.grants)
	}
	r.Close(nil)
	r.conn.settle(r.loop)
}

// A grantLog is a Watcher that notes the grants.
type grantLog struct{ grants []int }

func (w *grantLog) Granted(_ *Requester, grant int) {
	if grant > 0 {
		w.grants = append(w.grants, grant)
	}
}
func (*grantLog) Ended(*Requester, error) {}
