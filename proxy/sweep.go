package proxy

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// sweepLater has idle RDMA clients closed, if the options say so. One timer looks
// at all of them, eight times in IdleTimeout, each time with one task for each loop:
// what clients cost does not grow by a timer each. (tcpframe does it for TCP.)
func (l *listener) sweepLater() {
	idle := l.settings().opts.IdleTimeout
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sweeper != nil {
		l.sweeper.Stop()
		l.sweeper = nil
	}
	if idle > 0 && !l.draining {
		l.sweeper = time.AfterFunc(min(max(idle/8, 10*time.Millisecond), time.Minute), l.sweep)
	}
}

// sweep looks for idle clients once.
func (l *listener) sweep() {
	if idle := l.settings().opts.IdleTimeout; idle > 0 {
		l.eachRDMA(func(c *rdmaClient) { c.closeIfUnused(idle) })
	}
	l.sweepLater()
}

// eachRDMA has f called for every RDMA client, on its loop.
func (l *listener) eachRDMA(f func(*rdmaClient)) {
	for i, clients := range l.p.byLoop(l.snapshot(false)) {
		if len(clients) == 0 {
			continue
		}
		l.p.loops[i].Post(loop.TaskFunc(func() {
			for _, c := range clients {
				if s, ok := c.client.(*rdmaClient); ok {
					f(s)
				}
			}
		}))
	}
}

const (
	// hoardingAfter is how long a client must have been idle to be closed for what it
	// has.
	hoardingAfter = 5 * time.Second
	// roomEvery is how often newcomers that were refused have others looked at.
	roomEvery = time.Second
)

// makeRoom closes RDMA clients that are idle and have far more Receives than their
// share: what was granted to one that says nothing cannot be taken back in any
// other way. They come back when they have something to do, and begin anew. It is
// called when a newcomer found no memory.
func (p *Proxy) makeRoom() {
	now := time.Now().UnixNano()
	last := p.madeRoom.Load()
	if now-last < int64(roomEvery) || !p.madeRoom.CompareAndSwap(last, now) {
		return
	}
	for _, l := range p.allListeners() {
		l.eachRDMA((*rdmaClient).closeIfHoarding)
	}
}
