package dials

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimiter: of 256 attempts at once no more are under way, and no more begin in a second,
// than is allowed, and all of them begin.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(16, 50)
		s := l.Share()
		began := time.Now()
		done := make(chan time.Duration, 256)
		for range cap(done) {
			go func() {
				if err := s.Acquire(t.Context()); err != nil {
					t.Error(err)
				}
				done <- time.Since(began)
				time.Sleep(10 * time.Millisecond)
				s.Release()
			}()
		}
		synctest.Wait()
		// A single upstream may have half of the attempts: the rest is for others.
		if busy, waiting := l.Stats(); busy != 8 || waiting != 248 {
			t.Errorf("%d under way and %d waiting at once, want 8 and 248", busy, waiting)
		}
		var last time.Duration
		perSecond := make(map[int]int)
		for range cap(done) {
			last = max(last, <-done)
			perSecond[int(last/time.Second)]++
		}
		time.Sleep(time.Second) // until all have ended
		// 16 begin at once, and 240 at 50 in a second.
		if last < 4700*time.Millisecond || last > 4900*time.Millisecond {
			t.Errorf("all had begun after %v, want 4.8 s", last)
		}
		for second, n := range perSecond {
			if n > 50+16 {
				t.Errorf("%d began in second %d", n, second)
			}
		}
	})
}

// TestLimiterShares: an upstream whose attempts never end leaves room for others.
func TestLimiterShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(8, 1000)
		dead, well, third := l.Share(), l.Share(), l.Share()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 100)
		for range cap(ended) {
			go func() { ended <- dead.Acquire(ctx) }()
		}
		synctest.Wait()
		for range 2 {
			for _, s := range []*Share{well, third} {
				if err := s.Acquire(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			well.Release()
			third.Release()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		admitted := 0
		for range cap(ended) {
			if err := <-ended; err == nil {
				admitted++
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if busy, waiting := l.Stats(); busy != admitted || waiting != 0 || admitted == 0 || admitted >= 8 {
			t.Errorf("%d admitted, %d under way, %d waiting at the end", admitted, busy, waiting)
		}
		for range admitted {
			dead.Release()
		}
		if busy, _ := l.Stats(); busy != 0 {
			t.Errorf("%d under way after all have ended", busy)
		}
	})
}
