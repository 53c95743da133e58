package logsink

import (
	"errors"
	"io"
	"testing"

	"github.com/rs/zerolog"
)

// TestLinesLost: when standard error takes nothing, the access log learns that its lines are lost, and
// other lines are lost in silence.
func TestLinesLost(t *testing.T) {
	r, w := io.Pipe()
	s := New(w, Settings{Level: "info"})
	s.queue = newLineQueue(w, func(uint64) {})
	s.to = s.queue
	calls, lost := s.Calls(), 0
	for range logQueueLen + 10 {
		if _, err := calls.Write([]byte("{}\n")); errors.Is(err, errLineLost) {
			lost++
		}
	}
	if lost < 9 || uint64(lost) != s.queue.lost.Load() {
		t.Errorf("%d lines lost, want 9 or 10, as the queue says: %d", lost, s.queue.lost.Load())
	}
	if _, err := s.WriteLevel(zerolog.WarnLevel, []byte("{}\n")); err != nil {
		t.Error(err)
	}
	r.Close()
	s.Close()
}
