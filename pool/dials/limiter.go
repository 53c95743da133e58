// Package dials admits attempts to connect: few at a time, and few in a second.
package dials

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
)

// A Limiter limits the attempts to connect of all pools of a process: how many are under
// way, and how many begin each second. When a server comes back, all pools that lost it
// want to connect at once.
//
// Attempts that wait are admitted in the order they came, but one upstream may not have
// more attempts under way than the limit leaves room for others. Attempts at a server
// that does not answer take long, and must not delay attempts at other servers.
type Limiter struct {
	mu       sync.Mutex      // guards the rest and the fields of shares; a leaf
	max      int             // most attempts under way
	interval time.Duration   // between the beginnings of two attempts, on average
	active   int             // attempts under way
	meter    ratelimit.Meter // of the attempts that have begun
	waiting  []*waiter
	timer    *time.Timer // calls tick; nil until it is needed
}

// A waiter waits until its attempt may begin.
type waiter struct {
	s        *Share
	admitted chan struct{} // closed when the attempt may begin
}

// New returns a Limiter that allows most attempts at a time and perSecond in a second.
// After a pause without attempts, most attempts may begin at once.
func New(most, perSecond int) *Limiter {
	l := &Limiter{}
	l.Set(most, perSecond)
	return l
}

// Set changes the limits.
func (l *Limiter) Set(most, perSecond int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max, l.interval = max(1, most), time.Second/time.Duration(max(1, perSecond))
	l.admit()
}

// Share returns a new upstream's part of l.
func (l *Limiter) Share() *Share { return &Share{l: l} }

// Stats returns how many attempts are under way and how many wait.
func (l *Limiter) Stats() (active, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active, len(l.waiting)
}

// A Share is one upstream's part of a Limiter. A nil *Share limits nothing.
type Share struct {
	l      *Limiter
	active int // attempts under way
}

// Acquire waits until an attempt may begin, or until ctx ends. If it returns nil, the
// caller calls Release when the attempt has ended.
func (s *Share) Acquire(ctx context.Context) error {
	if s == nil {
		return nil
	}
	w := &waiter{s, make(chan struct{})}
	l := s.l
	l.mu.Lock()
	l.waiting = append(l.waiting, w)
	l.admit()
	l.mu.Unlock()
	select {
	case <-w.admitted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, w)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 {
		s.Release() // w was admitted in the meantime
	}
	return ctx.Err()
}

// Release ends an attempt that Acquire admitted.
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

// admit admits the attempts that may begin now. The caller holds l.mu.
func (l *Limiter) admit() {
	now := ratelimit.At(time.Now())
	step := int64(l.interval)
	for i := 0; i < len(l.waiting) && l.active < l.max; {
		w := l.waiting[i]
		if w.s.active > l.max-l.active-1 && w.s.active > 0 {
			i++ // an attempt of another upstream may go first
			continue
		}
		// As many attempts may begin at once as may be under way.
		saved := int64(l.max) * step
		if wait := time.Duration(l.meter.Wait(now, step, saved)); wait > 0 {
			if l.timer == nil {
				l.timer = time.AfterFunc(wait, l.tick)
			} else {
				l.timer.Reset(wait)
			}
			return
		}
		l.meter.Charge(now, step, saved)
		l.waiting = slices.Delete(l.waiting, i, i+1)
		w.s.active++
		l.active++
		close(w.admitted)
	}
}

// tick admits the attempts that may begin now.
func (l *Limiter) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admit()
}
