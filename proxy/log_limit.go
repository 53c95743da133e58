package proxy

import (
	"sync"
	"time"
)

// logEvery is the least time between two log lines about failures of the same kind.
const logEvery = 30 * time.Second

// A logLimit lets one log line about many events through every logEvery. It is safe for
// concurrent use.
type logLimit struct {
	mu     sync.Mutex // guards the rest; a leaf
	logged time.Time  // when the latest line was logged
	muted  int        // events since then
}

// line counts an event. It reports how many events a log line now stands for, or 0 if the
// caller must not log.
func (q *logLimit) line() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.muted++
	now := time.Now()
	if now.Sub(q.logged) < logEvery {
		return 0
	}
	n = q.muted
	q.logged, q.muted = now, 0
	return n
}

// reset lets the next event be logged.
func (q *logLimit) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.logged = time.Time{}
}
