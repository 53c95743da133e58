package pool

import (
	"errors"
	"testing"
	"testing/synctest"
)

// TestFullQueue: when as many Calls wait as may, those of a host wait that has fewer than its share, and no host can make
// more than twice as many wait.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		d := &fakeDialer{grant: 1}
		p, _ := newPool(t, Options{Connections: 1, QueueLimit: limit}, d)
		submit := func(h *Host) error { return p.Submit(&Entry{Flow: &Flow{Host: h}}, 0) }
		fill := func(h *Host) (n int) {
			for ; submit(h) == nil; n++ {
				if n > 3*limit {
					t.Fatal("a host may make any number of Calls wait")
				}
			}
			return n
		}
		greedy, other := &Host{}, &Host{}
		if n := fill(greedy); n != limit+1 { // one has the credit
			t.Errorf("%d Calls of the first host, want %d", n, limit+1)
		}
		if n := fill(other); n != limit/2 {
			t.Errorf("%d Calls of the second host wait, want half of %d", n, limit)
		}
		if err := submit(greedy); !errors.Is(err, errQueueFull) {
			t.Errorf("one more Call of the first: %v", err)
		}
		many := 0
		for range 3 * limit {
			if submit(&Host{}) == nil {
				many++
			}
		}
		if want := limit / 2; many != want {
			t.Errorf("%d of many hosts have a Call that waits, want %d", many, want)
		}
		p.Close()
	})
}
