package proxy

import (
	"sync"
	"time"
)

// Parting
//
// Thousands of clients may be on one connection. When it ends, all of them have to connect again,
// and each asks the server to bind its session. If they came at the same moment, the server would
// be busy with nothing else. So their connections are closed a few at a time. A client that sends
// a Call meanwhile is closed at once, because no connection carries the Call.

const (
	partEvery = 50 * time.Millisecond
	partMost  = 64 // clients that are closed in each partEvery
)

// A partHow says when the connection of a client that parts is closed.
type partHow uint8

const (
	partNow  partHow = iota // at once: its connection to the server has ended
	partIdle                // when no Call of it is under way: the connection to the server goes on until then
)

// A parting closes the connections of clients of one upstream.
type parting struct {
	mu      sync.Mutex // guards the rest; a leaf
	waiting []parter   // in the order they came
	timer   *time.Timer
	closed  bool
}

type parter struct {
	front *front
	how   partHow
}

// add has the connections of clients closed.
func (p *parting) add(clients []*front, how partHow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(clients) == 0 {
		return
	}
	for _, f := range clients {
		p.waiting = append(p.waiting, parter{f, how})
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(0, p.step)
	}
}

// step closes the next connections.
func (p *parting) step() {
	p.mu.Lock()
	now := make([]parter, 0, partMost)
	for len(p.waiting) > 0 && len(now) < partMost {
		if w := p.waiting[0]; !w.front.gone() {
			now = append(now, w)
		}
		p.waiting = p.waiting[1:]
	}
	if len(p.waiting) > 0 && !p.closed {
		p.timer = time.AfterFunc(partEvery, p.step)
	} else {
		p.waiting, p.timer = nil, nil
	}
	p.mu.Unlock()
	partAll(now)
}

func partAll(clients []parter) {
	for _, w := range clients {
		if w.how == partNow {
			w.front.close(errLaneEnded)
		} else {
			w.front.drain()
		}
	}
}

// close closes the clients that wait, because the upstream has ended, and lets none wait any more.
func (p *parting) close() {
	p.mu.Lock()
	p.closed = true
	rest := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	partAll(rest)
}
