package gates

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates/gatestest"
)

// TestBucketKeepsTheRate: clients that always have another Call get their rate, together,
// however long their Calls and Replies are.
func TestBucketKeepsTheRate(t *testing.T) {
	for _, tt := range []struct {
		rate  Rate
		octet int // of a Call and its Reply
		want  int // Calls in ten seconds
	}{
		{Rate{Calls: 5}, 100, 50},
		{Rate{Calls: 1000}, 100, 10_000},
		{Rate{Octets: 1 << 20}, 100_000, 104},
		{Rate{Calls: 1000, Octets: 1 << 20}, 10_000, 1048},
		{Rate{Octets: 1 << 20}, 8 << 20, 2}, // more than a second's worth at once
	} {
		t.Run(fmt.Sprint(tt.rate, tt.octet), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := gatestest.BubbleClock()
				b := NewLimit(GateListener, tt.rate, nil, clock).join(allHosts)
				clients := make([]*fakeWaiter, 3)
				for i := range clients {
					f := &fakeWaiter{send: func(f *fakeWaiter) {
						b.chargeCall(clock(), tt.octet/2, &f.client.Waiter)
						b.chargeReply(clock(), tt.octet-tt.octet/2)
					}}
					f.open(crowd.Host(1 + i))
					clients[i] = f
					f.run()
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				n := 0
				for _, f := range clients {
					n += f.sent
					f.Close(nil)
				}
				burst := tt.want/40 + len(clients) + b.limit.atOnce
				if n < tt.want*19/20-1 || n > tt.want+burst {
					t.Errorf("%d Calls in ten seconds, want %d", n, tt.want)
				}
				time.Sleep(time.Minute) // the timer ends
			})
		})
	}
}

// TestBucketAndIdleClients: a client that is admitted and sends nothing delays the others
// by ten milliseconds.
func TestBucketAndIdleClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := gatestest.BubbleClock()
		b := NewLimit(GateListener, Rate{Calls: 100}, nil, clock).join(allHosts)
		var clients []*fakeWaiter
		for i := range 20 {
			f := &fakeWaiter{send: func(f *fakeWaiter) {
				b.chargeCall(clock(), 0, &f.client.Waiter)
				f.idle = i > 0 // one Call
			}}
			f.open(crowd.Host(1 + len(clients)))
			clients = append(clients, f)
			b.mu.Lock()
			b.charge(clock(), 10, 0)
			f.client.WaitAt(GateListener, &b.gate)
			b.arm(1)
			b.mu.Unlock()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := clients[0].sent; n < 700 {
			t.Errorf("%d Calls in ten seconds, of which two went by in debt", n)
		}
		clients[0].Close(nil)
		time.Sleep(time.Minute)
	})
}
