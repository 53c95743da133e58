package rdmaside

import (
	"sync"
	"time"
)

// linesPerSecond bounds what strangers can write to the log by connecting again
// and again. Metrics count all.
const linesPerSecond = 10

// A LineLimit lets linesPerSecond lines through in each second. It is safe for
// concurrent use.
type LineLimit struct {
	mu         sync.Mutex // guards the rest; a leaf
	second     time.Time
	lines      int
	suppressed uint64
}

// Allow reports whether a line may be written, and how many were not since the
// last that was.
func (l *LineLimit) Allow(now time.Time) (ok bool, suppressed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.second) >= time.Second {
		l.second, l.lines = now, 0
	}
	if l.lines >= linesPerSecond {
		l.suppressed++
		return false, 0
	}
	l.lines++
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}
