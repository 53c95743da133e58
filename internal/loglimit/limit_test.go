package loglimit

import (
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	var l Limit
	now := time.Unix(1000, 0)
	for i := range 15 {
		if ok, _ := l.Allow(now); ok != (i < Burst) {
			t.Errorf("line %d: %v", i, ok)
		}
	}
	if ok, n := l.Allow(now.Add(Every)); !ok || n != 5 {
		t.Errorf("after %v: %v, %d suppressed, want 5", Every, ok, n)
	}
	if ok, _ := l.Allow(now.Add(Every)); ok {
		t.Errorf("a second line after %v", Every)
	}
	for i := range 2 * Burst {
		if ok, _ := l.Allow(now.Add(time.Hour)); ok != (i < Burst) {
			t.Errorf("line %d after an hour: %v", i, ok)
		}
	}
}
