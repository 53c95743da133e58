package testkit

import (
	"testing"
	"time"
)

// Settles reports whether f becomes true in time. It asks f every millisecond at first, and
// less often the longer it has waited, so that tests that wait for seconds leave the
// processors to others.
func Settles(within time.Duration, f func() bool) bool {
	for began := time.Now(); !f(); {
		waited := time.Since(began)
		if waited > within {
			return false
		}
		time.Sleep(min(max(waited/16, time.Millisecond), 50*time.Millisecond))
	}
	return true
}

// Patience is how long Eventually waits, and a bound for other waits of tests.
const Patience = 60 * time.Second

// Eventually waits until f is true, and fails the test after a minute: a machine that is busy
// with other tests is slow.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !Settles(Patience, f) {
		t.Fatalf("not within %v: %s", Patience, what)
	}
}
