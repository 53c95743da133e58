//go:build ibverbs

package ibverbs

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// TestRemovalUnderLoad removes the device and brings it back while connections are dialled, used and
// closed. All work completes once, the listener comes back each time, and nothing is left.
func TestRemovalUnderLoad(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			leaks := watchLeaks()
			et := newEventTest(t, addr)
			defer tellStandIn(t, standInAdd, 0, 0)
			var stop atomic.Bool
			var messages, ends atomic.Int64
			var wg sync.WaitGroup
			gonec := make(chan struct{})
			wg.Go(func() { // takes what the listener accepts
				for {
					select {
					case other := <-et.otherc:
						wg.Go(func() {
							<-other.closedc
							if other.wrong != "" {
								t.Error("accepted: ", other.wrong)
							}
						})
					case <-gonec:
						return
					}
				}
			})
			var dialers sync.WaitGroup
			for range 4 {
				dialers.Go(func() {
					for !stop.Load() {
						messages.Add(et.oneConnection(&stop))
						ends.Add(1)
					}
				})
			}
			for range 8 {
				before := messages.Load()
				et.until("messages pass", func() bool { return messages.Load() > before })
				before = ends.Load()
				tellStandIn(t, standInRemove, 0, 0)
				et.until("connections end", func() bool { return ends.Load() > before+4 })
				tellStandIn(t, standInAdd, 0, 0)
			}
			before := messages.Load()
			et.until("messages pass again", func() bool { return messages.Load() > before })
			stop.Store(true)
			dialers.Wait()
			et.l.Close() // so that no more are accepted
			et.until("all connections are gone", func() bool { return et.p.conns.Load() == 0 && len(et.otherc) == 0 })
			close(gonec)
			wg.Wait()
			et.close()
			leaks(t)
		})
	}
}

// TestRemovalInListen removes the device at the moment at which the listener has its address again. The listener comes
// back when the device does.
func TestRemovalInListen(t *testing.T) {
	leaks := watchLeaks()
	et := newEventTest(t, "127.0.0.1:0")
	defer tellStandIn(t, standInAdd, 0, 0)
	defer setFault(noFault, 0)
	var stop atomic.Bool
	for range 3 {
		setFault(faultGone, 1)
		tellStandIn(t, standInRemove, 0, 0)
		tellStandIn(t, standInAdd, 0, 0)
		et.until("the device is gone again", func() bool { return standIn.fault.Load() == noFault })
		tellStandIn(t, standInAdd, 0, 0)
		et.until("a message passes", func() bool { return et.oneConnection(&stop) > 0 })
	}
	et.l.Close()
	et.until("all connections are gone", func() bool {
		for len(et.otherc) > 0 {
			<-et.otherc
		}
		return et.p.conns.Load() == 0
	})
	et.close()
	leaks(t)
}

// oneConnection dials and sends until the connection ends or stop is set. It returns how many messages
// were completed.
func (et *eventTest) oneConnection(stop *atomic.Bool) int64 {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	own := newRecorderOf(4)
	c, err := et.p.Dial(ctx, et.loop, et.l.Addr().String(), fabric.ConnOptions{Sends: 4, Receives: 4}, own)
	if err != nil {
		return 0 // the device is away, or going
	}
	for range 4 { // which is what the peer has Receives for
		if stop.Load() || len(own.closedc) > 0 {
			break
		}
		et.loop.Do(func() { own.post(c, 1) })
	}
	et.loop.Do(func() { c.Close(nil) })
	select {
	case <-own.closedc:
	case <-time.After(patience):
		et.t.Error("a connection did not end")
		return 0
	}
	if own.wrong != "" {
		et.t.Error(own.wrong)
	}
	return own.sent
}
