// Package iwarptest has a loop that drives sockets with plain goroutines, for tests of
// package iwarp and of its users that need no event loop.
package iwarptest

import (
	"net"
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A Loop is a loop.SocketLoop made of plain goroutines. One goroutine with a mailbox is
// the loop, and each socket has one goroutine that reads and one that waits for room to
// write.
type Loop struct {
	mu      sync.Mutex // guards queue and stopped; a leaf
	queue   []loop.Task
	stopped bool

	wakec chan struct{}  // one deep: when it is full the loop is awake already
	donec chan struct{}  // closed when the loop has ended
	wg    sync.WaitGroup // the sockets' goroutines

	// Owned by the loop goroutine.
	spare   []loop.Task
	flushes []*socket // sockets whose FlushSoon was called
	flushed []*socket // the slice that flushes swaps with
	socks   map[*socket]struct{}
	vec     iovecs
}

var _ loop.SocketLoop = (*Loop)(nil)

// NewLoop starts a loop. Stop ends it.
func NewLoop() *Loop {
	l := &Loop{
		wakec: make(chan struct{}, 1),
		donec: make(chan struct{}),
		socks: make(map[*socket]struct{}),
	}
	go l.run()
	return l
}

// Post implements loop.Loop.
func (l *Loop) Post(t loop.Task) {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	l.queue = append(l.queue, t)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first {
		l.wake()
	}
}

func (l *Loop) wake() {
	select {
	case l.wakec <- struct{}{}:
	default:
	}
}

// Attach implements loop.SocketLoop. c may be any net.Conn. If c is not a TCP connection, the
// loop copies the octets that are written to it.
func (l *Loop) Attach(c net.Conn, st loop.Stream) error {
	t := &attachTask{s: newSocket(l, c, st), runc: make(chan struct{})}
	l.Post(t)
	select {
	case <-t.runc:
		return nil
	case <-l.donec:
	}
	select {
	case <-t.runc: // both were ready
		return nil
	default:
	}
	c.Close()
	return loop.ErrStopped
}

// Do runs f on the loop and waits for it. It must not be called on the loop.
func (l *Loop) Do(f func()) {
	done := make(chan struct{})
	l.Post(loop.TaskFunc(func() {
		defer close(done)
		f()
	}))
	<-done
}

// Stop ends the loop, and detaches its sockets with loop.ErrStopped. It returns when
// every goroutine has ended. It must not be called on the loop.
func (l *Loop) Stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.wake()
	<-l.donec
	l.wg.Wait()
}

func (l *Loop) run() {
	defer close(l.donec)
	for {
		l.mu.Lock()
		q, stopped := l.queue, l.stopped
		l.queue = l.spare[:0]
		l.mu.Unlock()
		for i, t := range q {
			t.Run()
			q[i] = nil
		}
		l.spare = q[:0]
		l.flush()
		switch {
		case stopped:
			for s := range l.socks {
				s.end(loop.ErrStopped)
			}
			return
		case len(q) == 0 && len(l.flushes) == 0:
			<-l.wakec
		}
	}
}

// flush calls Stream.Flush of each socket whose FlushSoon was called. A Flush may ask
// for more of them, so flush goes a few rounds.
func (l *Loop) flush() {
	for range 4 {
		if len(l.flushes) == 0 {
			return
		}
		l.flushes, l.flushed = l.flushed[:0], l.flushes
		for i, s := range l.flushed {
			l.flushed[i] = nil
			s.flushAsked = false
			if !s.detached {
				s.stream.Flush()
			}
		}
	}
}

type attachTask struct {
	s    *socket
	runc chan struct{} // closed when the task runs
}

func (t *attachTask) Run() {
	s := t.s
	s.loop.socks[s] = struct{}{}
	close(t.runc)
	s.stream.Attached(s)
	if s.detached {
		return
	}
	s.loop.wg.Add(2)
	go s.readLoop()
	go s.writeLoop()
}
