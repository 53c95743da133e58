package ratelimit

import (
	"testing"
	"time"
)

// count is how many may come at now at the rate of 10 a second, if two seconds are saved up.
func count(m *Meter, now int64) (n int) {
	for m.Take(now, Per(10), int64(2*time.Second)) {
		n++
	}
	return n
}

// TestTake: after silence as many may come at once as silence is saved up for, and then as many as the rate says.
func TestTake(t *testing.T) {
	var m Meter
	for _, tt := range []struct {
		name string
		now  time.Duration
		want int
	}{
		{"at first", 0, 20},
		{"after half a second", time.Second / 2, 5},
		{"after an hour", time.Hour, 20},
		{"in the past, as clocks may be", time.Second, 0},
		{"a second after the hour", time.Hour + time.Second, 10},
	} {
		if n := count(&m, int64(tt.now)); n != tt.want {
			t.Errorf("%s %d come, want %d", tt.name, n, tt.want)
		}
	}
	if m.Take(int64(2*time.Hour), 21*Per(10), int64(2*time.Second)) {
		t.Error("more than silence is saved up for comes at once")
	}
}

// TestCharge: what has come too early delays the next, and a Meter rests when nothing is owed.
func TestCharge(t *testing.T) {
	var m Meter
	if !m.Rested(0, int64(time.Second)) {
		t.Error("a new Meter does not rest")
	}
	m.Charge(0, int64(5*time.Second), int64(time.Second))
	if w := m.Wait(0, 0, int64(time.Second)); w != int64(4*time.Second) {
		t.Errorf("the next may come in %v, want 4s", time.Duration(w))
	}
	for now, want := range map[time.Duration]bool{4 * time.Second: false, 5 * time.Second: true} {
		if got := m.Rested(int64(now), int64(time.Second)); got != want {
			t.Errorf("after %v the Meter rests: %v, want %v", now, got, want)
		}
	}
}
