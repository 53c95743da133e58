package quota

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRests: when no host has Calls any more, a Quota looks at none of them, and its timer ends.
func TestRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(2)
		q.Set(16, false)
		parts := []*Part{q.Host().Part(0), q.Host().Part(1), q.Host().Part(0)}
		var pools [3]Place
		for i, part := range parts {
			part.Take()
			part.Aged(&pools[i], 1)
		}
		state := func() (ticking bool, hosts int) {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.ticking, len(q.active)
		}
		time.Sleep(time.Second)
		if ticking, n := state(); !ticking || n != 3 {
			t.Fatalf("with Calls of three hosts: ticking %v, %d hosts", ticking, n)
		}
		for i, part := range parts {
			part.Give(1)
			part.Aged(&pools[i], 0)
		}
		time.Sleep(2 * quietTicks * tickEvery)
		if ticking, n := state(); ticking || n > 1 { // one is forgotten when another begins
			t.Errorf("without Calls: ticking %v, %d hosts", ticking, n)
		}
	})
}
