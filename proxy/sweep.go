package proxy

import (
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// sweepLater has idle RDMA clients closed, if the options say so. One timer looks
// at all of them, eight times in IdleTimeout, each time with one task for each loop:
// what clients cost does not grow by a timer each. (tcpframe does it for TCP.)
func (l *listener) sweepLater() {
	idle := l.terms().opts.IdleTimeout
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
	idle := l.terms().opts.IdleTimeout
	homes := make(map[*loop][]*rdmaClient)
	for _, s := range l.snapshot(false) {
		if c, ok := s.(*rdmaClient); ok {
			homes[c.loop] = append(homes[c.loop], c)
		}
	}
	for home, clients := range homes {
		home.tcp.Post(tcpframe.TaskFunc(func() {
			for _, c := range clients {
				if idle > 0 {
					c.closeIfUnused(idle)
				}
			}
		}))
	}
	l.sweepLater()
}
