package settings

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/pool/dials"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
)

// TestDialLimits: all connections that an upstream may have are made before the Calls which wait for
// them have waited too long, if the server accepts them in the usual time. And the attempts are
// bounded.
func TestDialLimits(t *testing.T) {
	for _, tt := range []struct {
		o              UpstreamOptions
		mostAtOnce     int
		mostEachSecond int
	}{
		{UpstreamOptions{Mode: ModePinned, Pinned: 4096, Connections: 4, UnavailableAfter: 30 * time.Second}, 84, 280},
		{UpstreamOptions{Mode: ModePinned, Pinned: 4096, Connections: 4, UnavailableAfter: 10 * time.Second}, 250, 830},
		{UpstreamOptions{Mode: ModePinned, Pinned: 4096, Connections: 64, UnavailableAfter: time.Second}, 2600, 8400},
		{UpstreamOptions{Mode: ModePinned, Pinned: 256, Connections: 4, UnavailableAfter: 30 * time.Second}, 64, 200},
		{UpstreamOptions{Mode: ModeShared, Connections: 64, UnavailableAfter: time.Second}, 64, 200},
		{UpstreamOptions{Mode: ModeAuto, Endpoints: []string{"a:1"}, Connections: 64, UnavailableAfter: time.Second}, 77, 256},
	} {
		name := fmt.Sprintf("%d pinned in %v", tt.o.Pinned, tt.o.UnavailableAfter)
		synctest.Test(t, func(t *testing.T) {
			l := dials.New(reach.DialLimits([]reach.Demand{tt.o.Demand()}))
			s := l.Share()
			began := time.Now()
			all := tt.o.Connections + tt.o.Pinned + tt.o.LaneCount()
			waited := make(chan time.Duration, all)
			var now, most atomic.Int64
			for range all {
				go func() {
					if err := s.Acquire(t.Context()); err != nil {
						t.Error(err)
						return
					}
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					waited <- time.Since(began)
					time.Sleep(reach.DialTime)
					now.Add(-1)
					s.Release()
				}()
			}
			time.Sleep(time.Hour)
			if len(waited) != all {
				t.Fatalf("%s: %d of %d attempts began", name, len(waited), all)
			}
			inSecond := make(map[time.Duration]int)
			for range all {
				d := <-waited
				inSecond[d/time.Second]++
				if d > tt.o.UnavailableAfter*3/4 {
					t.Fatalf("%s: a connection was dialled after %v", name, d)
				}
			}
			if int(most.Load()) > tt.mostAtOnce {
				t.Errorf("%s: %d attempts under way, want %d at most", name, most.Load(), tt.mostAtOnce)
			}
			for second, n := range inSecond {
				if n > tt.mostEachSecond+tt.mostAtOnce {
					t.Errorf("%s: %d attempts began in second %d, want %d and %d at once", name, n, second, tt.mostEachSecond, tt.mostAtOnce)
				}
			}
		})
	}
}

// TestDialLimitsAddUp: upstreams whose servers come back at the same time do not wait for each other.
func TestDialLimitsAddUp(t *testing.T) {
	o := UpstreamOptions{Mode: ModePinned, Pinned: 3000, Connections: 4, UnavailableAfter: 10 * time.Second}
	_, one := reach.DialLimits([]reach.Demand{o.Demand()})
	_, three := reach.DialLimits([]reach.Demand{o.Demand(), o.Demand(), o.Demand()})
	if three != 3*one {
		t.Errorf("%d attempts a second for three upstreams, %d for one", three, one)
	}
	if most, each := reach.DialLimits(nil); most != reach.LeastDials || each != reach.LeastDialsPerSecond {
		t.Errorf("without upstreams: %d and %d", most, each)
	}
}
