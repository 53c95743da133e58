package testkit

import (
	"testing"
	"time"
)

// Settles reports whether f becomes true in time.
func Settles(within time.Duration, f func() bool) bool {
	for end := time.Now().Add(within); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// patience is how long Eventually waits.
const patience = 20 * time.Second

// Eventually waits until f is true, and fails the test after 20 s.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !Settles(patience, f) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}
