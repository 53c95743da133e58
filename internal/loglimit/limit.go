// Package loglimit bounds the log lines that peers can cause. The metrics count every event; the
// log shows the first of many, and on the next line how many it has left out.
package loglimit

import (
	"sync"
	"time"
)

const (
	// Burst is how many lines a Limit permits at once.
	Burst = 10
	// Every is the time after which it permits one more.
	Every = time.Second
)

// A Limit permits Burst lines at once, and one more after each Every. Its zero value is ready to
// use. It is safe for concurrent use. Each kind of line has a Limit of its own: a peer that causes
// many lines of one kind must not suppress those of another.
type Limit struct {
	mu         sync.Mutex // guards the fields below; a leaf: call nothing while holding it
	tokens     float64
	last       time.Time // with a monotonic reading, so that no change of the wall clock counts
	suppressed uint64
}

// Allow reports whether a line may be written now, and how many lines were suppressed since the
// last line that was written.
func (l *Limit) Allow(now time.Time) (ok bool, suppressed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() {
		l.tokens = Burst
	} else if passed := now.Sub(l.last); passed > 0 {
		l.tokens = min(Burst, l.tokens+float64(passed)/float64(Every))
	}
	l.last = now
	if l.tokens < 1 {
		l.suppressed++
		return false, 0
	}
	l.tokens--
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}
