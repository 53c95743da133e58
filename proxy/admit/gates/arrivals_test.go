package gates

import (
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
)

// TestArrivals: a host has its rate of new connections, a second's worth at once, and so have all hosts together.
// Hosts that owe nothing are forgotten.
func TestArrivals(t *testing.T) {
	var a Arrivals
	count := func(h crowd.Host, all, each int, now time.Duration) (in int) {
		for range 1000 {
			if a.Enter(h, all, each, int64(now)) == arrivalOK {
				in++
			}
		}
		return in
	}
	for i, step := range []struct {
		host      crowd.Host
		all, each int
		now       time.Duration
		want      int
	}{
		{1, 0, 0, 0, 1000}, // no limit
		{1, 0, 10, 0, 10},
		{1, 0, 10, 0, 0},
		{2, 0, 10, 0, 10}, // another host has its own
		{1, 0, 10, 500 * time.Millisecond, 5},
		{1, 0, 10, time.Minute, 10}, // and no more than a second's worth
		{3, 7, 0, time.Minute, 7},
		{4, 7, 0, time.Minute, 0},
		{4, 7, 5, time.Minute + time.Second, 5},
		{5, 7, 5, time.Minute + time.Second, 2}, // what the others have left
	} {
		if n := count(step.host, step.all, step.each, step.now); n != step.want {
			t.Errorf("step %d: %d connections, want %d", i, n, step.want)
		}
	}
	for i := range crowd.Host(10_000) {
		a.Enter(i+100, 0, 10, int64(time.Minute)+int64(i)*int64(time.Millisecond))
	}
	if n := len(a.of); n > 2000 {
		t.Errorf("%d hosts are remembered, of which 1000 came in the last second", n)
	}
}
