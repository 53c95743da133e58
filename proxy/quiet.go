package proxy

import (
	"sync"
	"time"
)

// quietFor is how long the same upstream's failures go on without another line.
const quietFor = 30 * time.Second

// quiet lets one line in quietFor through. It is safe for concurrent use.
type quiet struct {
	mu     sync.Mutex // guards the rest; a leaf
	logged time.Time  // when the last line was
	muted  int        // events since then
}

// line reports how many events the line to be logged now stands for, or 0 if there
// is to be none.
func (q *quiet) line() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.muted++
	now := time.Now()
	if now.Sub(q.logged) < quietFor {
		return 0
	}
	n = q.muted
	q.logged, q.muted = now, 0
	return n
}

// reset makes the next event one that is logged.
func (q *quiet) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.logged = time.Time{}
}
