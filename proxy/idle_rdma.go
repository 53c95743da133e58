package proxy

import (
	"time"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// sweepLater starts the timer that has idle RDMA clients closed, if there is an idle timeout.
// One timer serves all clients, so that a client costs no timer of its own. It fires eight
// times in IdleTimeout and posts one task to each loop. (tcpframe closes idle TCP clients.)
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

// sweep closes the clients that are idle now.
func (l *listener) sweep() {
	if idle := l.settings().opts.IdleTimeout; idle > 0 {
		l.eachRDMA(func(c *rdmaClient) { c.closeIfUnused(idle) })
	}
	l.sweepLater()
}

// eachRDMA calls f for every RDMA client, on the client's loop. It does not wait for that.
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
	// hoardingAfter is how long a client must have been idle to be closed for its Receives.
	hoardingAfter = 5 * time.Second
	// roomEvery is the least time between two looks for clients to close.
	roomEvery = time.Second
)

// makeRoom closes RDMA clients that are idle and have far more Receives than their share,
// because there is no other way to take credits back from a client that sends nothing. Such a
// client connects again, with few credits, when it has something to send. makeRoom is called
// when there was no memory for a new client.
func (p *Proxy) makeRoom() {
	now := p.engine.Now() // the wall clock may be set back
	last := p.madeRoom.Load()
	if last != 0 && now-last < int64(roomEvery) || !p.madeRoom.CompareAndSwap(last, now) {
		return
	}
	for _, l := range p.allListeners() {
		l.eachRDMA((*rdmaClient).closeIfHoarding)
	}
}
