package session

import (
	"testing"
	"time"
)

// TestPatience: the time that clients have to answer reverse Calls gets shorter while some of them
// are silent, but never too short, and comes back.
func TestPatience(t *testing.T) {
	var k reverseCalls
	now := time.Now()
	for _, want := range []time.Duration{callbackPatience, callbackPatience / 2, callbackPatience / 4, callbackPatience / 8, leastPatience, leastPatience} {
		if got := k.wait(now); got != want {
			t.Errorf("%v to answer, want %v", got, want)
		}
		now = now.Add(want)
		k.unanswered(now)
	}
	now = now.Add(patienceHeals - 1)
	if got := k.wait(now); got != leastPatience {
		t.Errorf("%v just before it heals", got)
	}
	if got := k.wait(now.Add(1)); got != callbackPatience {
		t.Errorf("%v when all have answered for long, want %v", got, callbackPatience)
	}
}
