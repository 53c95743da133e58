package rdmaside

import (
	"testing"
	"time"
)

func TestLineLimit(t *testing.T) {
	var l LineLimit
	now := time.Unix(1000, 0)
	for i := range 15 {
		if ok, _ := l.Allow(now); ok != (i < linesPerSecond) {
			t.Errorf("line %d: %v", i, ok)
		}
	}
	if ok, n := l.Allow(now.Add(time.Second)); !ok || n != 5 {
		t.Errorf("the next second: %v, %d suppressed, want 5", ok, n)
	}
}
