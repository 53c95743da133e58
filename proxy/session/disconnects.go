package session

import (
	"errors"
	"sync"
	"time"
)

// Paced disconnects
//
// Thousands of clients may be on one connection. When it ends, all of them have to connect again,
// and each asks the server to bind its session. If they came at the same moment, the server would
// be busy with nothing else. So their connections are closed a few at a time. A client that sends
// a Call meanwhile is closed at once, because no connection carries the Call.

const (
	disconnectEvery = 50 * time.Millisecond
	disconnectMost  = 64 // clients that are closed in each disconnectEvery
)

// ErrEnded closes a client whose connection to the server has ended.
var ErrEnded = errors.New("proxy: the connection that carries the client's sessions has ended")

// A when says when the connection of a client is closed once it is its turn.
type when uint8

const (
	atOnce   when = iota // its connection to the server has ended
	whenIdle             // when no Call of it is under way: the connection to the server goes on until then
)

// disconnects closes the connections of clients of one upstream. Its zero value is ready for use.
type disconnects struct {
	mu      sync.Mutex // guards the rest; a leaf
	waiting []leaving  // in the order they came
	timer   *time.Timer
	closed  bool
}

// A leaving is a client whose connection is to be closed.
type leaving struct {
	peer Ender
	when when
}

// disconnect closes the connection.
func (l leaving) disconnect() {
	if l.when == atOnce {
		l.peer.Close(ErrEnded)
	} else {
		l.peer.Drain()
	}
}

// add has the connections of clients closed.
func (d *disconnects) add(clients []Ender, w when) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(clients) == 0 {
		return
	}
	for _, p := range clients {
		d.waiting = append(d.waiting, leaving{p, w})
	}
	if d.timer == nil {
		d.timer = time.AfterFunc(0, d.step)
	}
}

// step closes the next connections.
func (d *disconnects) step() {
	d.mu.Lock()
	now := make([]leaving, 0, disconnectMost)
	for len(d.waiting) > 0 && len(now) < disconnectMost {
		if l := d.waiting[0]; !l.peer.Gone() {
			now = append(now, l)
		}
		d.waiting = d.waiting[1:]
	}
	if len(now) > 0 && !d.closed { // also when nobody waits: those that are added soon wait for their turn
		d.timer = time.AfterFunc(disconnectEvery, d.step)
	} else {
		d.waiting, d.timer = nil, nil
	}
	d.mu.Unlock()
	for _, l := range now {
		l.disconnect()
	}
}

// close closes the clients that wait, because the upstream has ended, and lets none wait any more.
func (d *disconnects) close() {
	d.mu.Lock()
	d.closed = true
	rest := d.waiting
	d.waiting = nil
	d.mu.Unlock()
	for _, l := range rest {
		l.disconnect()
	}
}
