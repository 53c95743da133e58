package eventloop

import "github.com/rdmabridge/rdmabridge/internal/loop"

// NewOffline returns a loop without a goroutine, for tests of what runs on a loop. RunPass runs what is posted to it.
func NewOffline() *Loop {
	l := newLoop(&Group{watcher: &watcher{}}, 0)
	l.awake = true
	return l
}

// NewOfflineSocket returns the socket of a loop of NewOffline. It is like a socket after Detached: it takes no octets.
func NewOfflineSocket(l *Loop, s loop.Stream) *Socket {
	return &Socket{loop: l, stream: s, fd: -1, gone: true}
}

// SetClock makes now the result of Now of a loop of NewOffline.
func (l *Loop) SetClock(now int64) {
	if l.driver != nil {
		panic("BUG: tcpframe: the clock of a running loop")
	}
	l.clock = now
}

// RunPass runs what the end of a pass runs, on a loop of NewOffline, until nothing is left to do.
func (l *Loop) RunPass() {
	for len(l.dirty) > 0 || len(l.in) > 0 {
		in := l.in
		l.in = nil
		for _, t := range in {
			t.Run()
		}
		l.flush()
	}
}
