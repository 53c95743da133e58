package pool

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Limiter bounds the attempts to connect of all pools of a process: how many are
// under way, and how many begin in a second. When a server comes back all that lost it
// want it at once.
//
// Those that wait are let in as they came, but an upstream may have no more under way
// than there is room left for others: attempts at a server that does not answer take
// long, and must not keep those at the next one waiting.
type Limiter struct {
	mu       sync.Mutex // guards the rest and the fields of shares; a leaf
	max      int
	interval time.Duration // between two beginnings, on average
	active   int
	due      time.Time // when the next one would begin if all came evenly
	waiting  []*waiter
	timer    *time.Timer
}

// An waiter waits for its attempt.
type waiter struct {
	s  *Share
	in chan struct{} // closed when it may begin
}

// NewLimiter allows most attempts at a time and perSecond in a second, of which as many
// may begin at once as may be under way.
func NewLimiter(most, perSecond int) *Limiter {
	l := &Limiter{}
	l.Set(most, perSecond)
	return l
}

// Set changes the bounds.
func (l *Limiter) Set(most, perSecond int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max, l.interval = max(1, most), time.Second/time.Duration(max(1, perSecond))
	l.admit()
}

// Share makes one upstream's part of what l allows.
func (l *Limiter) Share() *Share { return &Share{l: l} }

// Stats are how many attempts are under way and how many wait.
func (l *Limiter) Stats() (busy, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active, len(l.waiting)
}

// A Share is one upstream's part of a Limiter. A nil *Share has no bounds.
type Share struct {
	l      *Limiter
	active int
}

// Acquire waits until an attempt may begin, or ctx ends. Leave follows when it did.
func (s *Share) Acquire(ctx context.Context) error {
	if s == nil {
		return nil
	}
	e := &waiter{s, make(chan struct{})}
	l := s.l
	l.mu.Lock()
	l.waiting = append(l.waiting, e)
	l.admit()
	l.mu.Unlock()
	select {
	case <-e.in:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, e)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 {
		s.Release() // let in at the last moment
	}
	return ctx.Err()
}

// Release is the end of an attempt.
func (s *Share) Release() {
	if s == nil {
		return
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.active--
	s.l.active--
	s.l.admit()
}

// admit lets in who may begin. l.mu is held.
func (l *Limiter) admit() {
	now := time.Now()
	for i := 0; i < len(l.waiting) && l.active < l.max; {
		e := l.waiting[i]
		if e.s.active > l.max-l.active-1 && e.s.active > 0 {
			i++ // another upstream's may come first
			continue
		}
		if l.due.Before(now) {
			l.due = now
		}
		// As many as may be under way may begin at once.
		if wait := l.due.Sub(now) - time.Duration(l.max-1)*l.interval; wait > 0 {
			if l.timer == nil {
				l.timer = time.AfterFunc(wait, l.tick)
			} else {
				l.timer.Reset(wait)
			}
			return
		}
		l.due = l.due.Add(l.interval)
		l.waiting = slices.Delete(l.waiting, i, i+1)
		e.s.active++
		l.active++
		close(e.in)
	}
}

func (l *Limiter) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admit()
}
