package session

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An endedPeer counts how its connection was ended.
type endedPeer struct {
	testPeer
	closed, drained atomic.Int32
	reason          error
}

func (p *endedPeer) Close(reason error) { p.reason = reason; p.closed.Add(1) }
func (p *endedPeer) Drain()             { p.drained.Add(1) }

// peers returns n peers, and the same as what ends them.
func peers(n int) (all []*endedPeer, enders []Ender) {
	for range n {
		p := &endedPeer{}
		all, enders = append(all, p), append(enders, p)
	}
	return all, enders
}

// TestDisconnects: clients are closed a few at a time, in their order. Those that have gone by themselves take no place,
// and those that wait when the upstream ends are closed then.
func TestDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d disconnects
		idle, some := peers(disconnectMost)
		d.add(some, whenIdle)
		synctest.Wait() // the first are closed before others are added, or with them
		all, most := peers(3 * disconnectMost)
		for _, p := range all[:disconnectMost] {
			p.gone = true
		}
		d.add(most, atOnce)
		ended := func() (closed, drained int) {
			synctest.Wait()
			for _, p := range all {
				closed += int(p.closed.Load())
			}
			for _, p := range idle {
				drained += int(p.drained.Load())
			}
			return closed, drained
		}
		for i, want := range []int{0, disconnectMost} {
			if closed, drained := ended(); closed != want || drained != disconnectMost {
				t.Errorf("step %d: %d clients closed and %d when they are idle, want %d and %d", i, closed, drained, want, disconnectMost)
			}
			time.Sleep(disconnectEvery)
		}
		if closed, _ := ended(); closed != 2*disconnectMost {
			t.Errorf("%d clients closed, want %d", closed, 2*disconnectMost)
		}
		if p := all[2*disconnectMost]; p.closed.Load() != 1 || !errors.Is(p.reason, ErrEnded) {
			t.Errorf("a client was closed %d times, because of %v", p.closed.Load(), p.reason)
		}
	})
}

// TestDisconnectsClose: when the upstream ends, the clients that wait are closed, and none waits any more.
func TestDisconnectsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d disconnects
		all, some := peers(2 * disconnectMost)
		d.add(some, atOnce)
		synctest.Wait()
		d.close()
		late, more := peers(1)
		d.add(more, atOnce)
		synctest.Wait()
		for i, p := range all {
			if p.closed.Load() != 1 {
				t.Fatalf("client %d was closed %d times", i, p.closed.Load())
			}
		}
		if late[0].closed.Load() != 0 {
			t.Error("a client was closed that came after the end")
		}
	})
}
