package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimiter: 256 that want to connect at once do so no faster and no more at a time
// than is allowed, and all do.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(16, 50)
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
		// An upstream alone has half: the rest is for others.
		if busy, waiting := l.Stats(); busy != 8 || waiting != 248 {
			t.Errorf("%d under way and %d waiting at once, want 8 and 248", busy, waiting)
		}
		var last time.Duration
		perSecond := make(map[int]int)
		for range cap(done) {
			last = max(last, <-done)
			perSecond[int(last/time.Second)]++
		}
		time.Sleep(time.Second) // all leave
		// 16 at once, 240 at 50 in a second.
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

// TestLimiterShares: an upstream whose attempts take for ever leaves room for another.
func TestLimiterShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(8, 1000)
		dead, well, third := l.Share(), l.Share(), l.Share()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 100)
		for range cap(ended) {
			go func() { ended <- dead.Acquire(ctx) }()
		}
		synctest.Wait()
		for range 2 { // and more than once
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
		let := 0
		for range cap(ended) {
			if err := <-ended; err == nil {
				let++
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if busy, waiting := l.Stats(); busy != let || waiting != 0 || let == 0 || let >= 8 {
			t.Errorf("%d let in, %d under way, %d waiting at the end", let, busy, waiting)
		}
		for range let {
			dead.Release()
		}
		if busy, _ := l.Stats(); busy != 0 {
			t.Errorf("%d under way after all have left", busy)
		}
	})
}
