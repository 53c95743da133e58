package fabrictest

import (
	"sync"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A Loop is a loop.Loop that is one goroutine and a queue. Inside a
// testing/synctest bubble an idle Loop is durably blocked.
type Loop struct {
	mu       sync.Mutex // guards the next three; a leaf
	tasks    []loop.Task
	stopping bool // Stop was called
	stopped  bool // the goroutine runs no more tasks; follows stopping

	wakec chan struct{} // one deep: when it is full the loop is awake already
	donec chan struct{} // closed when the goroutine has ended
}

// NewLoop starts a loop. Stop it before the test ends.
func NewLoop() *Loop {
	l := &Loop{wakec: make(chan struct{}, 1), donec: make(chan struct{})}
	go l.run()
	return l
}

func (l *Loop) run() {
	defer close(l.donec)
	var batch []loop.Task
	for {
		l.mu.Lock()
		batch, l.tasks = l.tasks, batch[:0]
		l.stopped = l.stopping && len(batch) == 0
		stopped := l.stopped
		l.mu.Unlock()
		for i, t := range batch {
			batch[i] = nil
			t.Run()
		}
		switch {
		case len(batch) > 0:
		case stopped:
			return
		default:
			<-l.wakec
		}
	}
}

// Post queues t. After Stop has returned it drops t.
func (l *Loop) Post(t loop.Task) {
	l.mu.Lock()
	stopped := l.stopped
	if !stopped {
		l.tasks = append(l.tasks, t)
	}
	l.mu.Unlock()
	if !stopped {
		l.wake()
	}
}

func (l *Loop) wake() {
	select {
	case l.wakec <- struct{}{}:
	default:
	}
}

// Do runs f on the loop and waits for it. It must not be called on the loop.
func (l *Loop) Do(f func()) { Do(l, f) }

// Do runs f on l and waits for it. It must not be called on l.
func Do(l loop.Loop, f func()) {
	done := make(chan struct{})
	l.Post(loop.TaskFunc(func() {
		defer close(done)
		f()
	}))
	<-done
}

// Stop runs the tasks that are posted, and those that they post, ends the goroutine, and waits
// for its end. It must not be called on the loop.
func (l *Loop) Stop() {
	l.mu.Lock()
	l.stopping = true
	l.mu.Unlock()
	l.wake()
	<-l.donec
}
