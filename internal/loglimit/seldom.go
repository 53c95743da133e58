package loglimit

import (
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Again is the least time between two lines of a Seldom.
const Again = 30 * time.Second

// A Seldom permits one line in each Again. Its zero value is ready to use. It is safe for concurrent
// use.
type Seldom struct {
	mu         sync.Mutex // guards the fields below; a leaf
	logged     time.Time  // when the latest line was permitted
	suppressed uint64     // since then
}

// Allow reports whether a line may be written now, and how many were suppressed since the last one.
func (s *Seldom) Allow(now time.Time) (ok bool, suppressed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.logged.IsZero() && now.Sub(s.logged) < Again {
		s.suppressed++
		return false, 0
	}
	suppressed, s.suppressed = s.suppressed, 0
	s.logged = now
	return true, suppressed
}

// Reset permits the next line.
func (s *Seldom) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logged = time.Time{}
}

// Line begins a line as that of a Limit does.
func (s *Seldom) Line(log *zerolog.Logger, level zerolog.Level, event string) *zerolog.Event {
	ok, suppressed := s.Allow(time.Now())
	if !ok {
		return nil
	}
	return Line(log, level, event, suppressed)
}
