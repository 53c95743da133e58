package rdmaside

import (
	"slices"
	"testing"
)

// TestGrantOfReplies: a Reply raises the grant when all of it is found valid, here when its Call's Send has completed: the
// newest one to what it grants, an older one to the least that it and newer ones grant. The Watcher hears of each change.
func TestGrantOfReplies(t *testing.T) {
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

	// Another Reply comes each time before the one before it is known to be valid.
	send(5)
	answer(5, 7)
	for i, credits := range []uint32{6, 8, 5, 8} {
		xid := uint32(6 + i)
		send(xid)
		answer(xid, credits)
		r.conn.stepFirst() // the Send of the Call before
	}
	want("no newest Reply was known to be valid", 5)
	r.conn.step()
	want("the newest Reply is valid", 8)

	// One of two Replies is refused.
	refused := func(xid, credits uint32) {
		r.conn.deliver(append(plain(xid, credits), getAttrReply(xid)[:27]...), 0)
	}
	send(10)
	answer(10, 1)
	r.conn.step()
	send(11)
	answer(11, 4)
	r.conn.step()
	send(12)
	send(13)
	answer(12, 6)
	refused(13, 8)
	r.conn.step()
	want("the older one is valid", 6)
	send(14)
	send(15)
	refused(14, 7)
	answer(15, 8)
	r.conn.step()
	want("the newest one is valid", 8)
	if !slices.Equal(w.grants, []int{3, 2, 6, 5, 8, 1, 4, 6, 8}) {
		t.Errorf("the Watcher heard of %v, want 3, 2, 6, 5, 8, 1, 4, 6 and 8", w.grants)
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
