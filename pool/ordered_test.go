package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestOrderedFlows: flows whose owners submit one Call after the other, each when the one before has
// been sent, have the same share of scarce credits as flows whose Calls wait together, whether they
// share a host or have hosts of their own.
func TestOrderedFlows(t *testing.T) {
	for _, one := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDialer{grant: 8}
			p, _ := newPool(t, Options{Connections: 1, Loops: 1, QueueWait: time.Hour}, d)
			m := d.members[0]
			m.sent = func(e *Entry) {
				if e.Flow.Ordered {
					submit(t, p, e.Flow, 200, 0)
				}
			}
			first := &Flow{}
			for range 8 {
				submit(t, p, first, 200, 0) // no credit is left
			}
			h := &Host{}
			flows := []*Flow{{Ordered: true}, {}, {Ordered: true, Weight: 3}, {}, {}}
			index := map[*Flow]int{}
			for i, f := range flows {
				if one {
					f.Host = h
				}
				index[f] = i
				for range 64 {
					submit(t, p, f, 200, 0)
					if f.Ordered {
						break
					}
				}
			}
			had := make([]float64, len(flows))
			for total := 0; total < 20_000; total++ {
				got := m.take()
				for _, e := range got {
					if i, ok := index[e.Flow]; ok {
						had[i]++
					}
					if !e.Flow.Ordered && e.Flow != first {
						submit(t, p, e.Flow, 200, 0)
					}
				}
				for _, e := range got {
					e.Answered()
					m.seat.Done(e, 0)
				}
			}
			for i, f := range flows {
				had[i] /= float64(f.weight())
			}
			if j := jain(had); j < 0.99 {
				t.Errorf("one host %v: Jain's index of the shares is %.3f: %.0f", one, j, had)
			}
			for _, f := range flows {
				p.Forget(f, errLost)
			}
		})
	}
}
