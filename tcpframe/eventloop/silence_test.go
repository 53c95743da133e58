package eventloop

import (
	"testing"
	"time"
)

func TestSilence(t *testing.T) {
	const s = int64(time.Second)
	type look struct {
		at    int64
		owed  bool
		heard time.Duration
		want  time.Duration
	}
	for name, looks := range map[string][]look{
		"idle":                          {{s, false, time.Hour, 0}, {2 * s, false, time.Hour, 0}},
		"the first look knows nothing":  {{s, true, time.Hour, 0}, {2 * s, true, time.Hour, time.Second}},
		"from the look before the send": {{s, false, time.Hour, 0}, {2 * s, true, time.Hour, time.Second}, {3 * s, true, time.Hour, 2 * time.Second}},
		"acknowledgements come":         {{s, false, 0, 0}, {2 * s, true, time.Millisecond, time.Millisecond}, {3 * s, true, time.Millisecond, time.Millisecond}},
		"then they stop":                {{s, true, 0, 0}, {2 * s, true, time.Second / 2, time.Second / 2}, {3 * s, true, time.Second * 3 / 2, time.Second * 3 / 2}},
		"then it is answered":           {{s, true, time.Hour, 0}, {2 * s, true, time.Hour, time.Second}, {3 * s, false, 0, 0}, {4 * s, true, time.Second, time.Second}},
		// This process was stopped for 9 s. Octets that arrived meanwhile are unread.
		"this process was stopped": {{s, true, time.Hour, 0}, {10 * s, true, time.Hour, 0}, {11 * s, true, time.Hour, time.Second}},
	} {
		var q silence
		for i, l := range looks {
			if got := q.look(l.at, l.owed, l.heard); got != l.want {
				t.Errorf("%s: look %d: silent for %v, want %v", name, i, got, l.want)
			}
		}
	}
}
