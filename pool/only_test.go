package pool

import (
	"testing"
	"testing/synctest"
)

// TestOnlyEnds: a flow that does not need its only seat any more may use every seat, and none that
// is not there any more.
func TestOnlyEnds(t *testing.T) {
	for _, unbind := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 1}
			p, _ := newPool(t, Options{Connections: 2}, d)
			f := &Flow{}
			end := func() {
				f.Follow(&Entry{Flow: f, credit: credit{seat: p.seats[1]}})
				if e := sticky(t, p, f, 0); on(d, e) != 1 {
					t.Fatalf("on seat %d, want the only one, 1", on(d, e))
				}
				if unbind {
					p.Unbind(f)
				}
				f.Follow(nil)
			}
			end()
			if e := sticky(t, p, f, 0); on(d, e) != 0 {
				t.Errorf("on seat %d, want the one with a credit, 0", on(d, e))
			}
			d.answer(0)
			d.answer(1)
			end()
			d.answer(1)
			p.Update(updated(1, "server:20049"), false)
			synctest.Wait()
			if e := sticky(t, p, f, 0); on(d, e) != 0 {
				t.Errorf("on seat %d, want the one that is left, 0", on(d, e))
			}
		})
	}
}

// TestOnlyOfOwnCalls: a flow follows only Calls of its own, and so never comes to a seat of another pool.
func TestOnlyOfOwnCalls(t *testing.T) {
	f, other := &Flow{}, &Flow{}
	defer func() {
		if recover() == nil || f.only != nil {
			t.Error("a flow follows a Call of another one")
		}
	}()
	f.Follow(&Entry{Flow: other, credit: credit{seat: &Seat{}}})
}
