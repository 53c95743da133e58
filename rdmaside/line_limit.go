package rdmaside

import (
	"sync"
	"time"
)

// linesPerSecond bounds how much a peer can write to the log by connecting again
// and again. The metrics count every event.
const linesPerSecond = 10

// A LineLimit permits at most linesPerSecond log lines per second. It is safe for
// concurrent use.
type LineLimit struct {
	mu         sync.Mutex // guards the fields below; a leaf: call nothing while holding it
	second     time.Time
	lines      int
	suppressed uint64
}

// Allow reports whether a line may be written now, and how many lines were
// suppressed since the last line that was written.
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
