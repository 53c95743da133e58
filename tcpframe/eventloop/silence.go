package eventloop

import (
	"time"
)

// silenceGap is the longest time between two looks at a socket in which the peer counts as
// silent. If more time has passed, this process did not run meanwhile, and the peer's octets
// may still be unread.
const silenceGap = int64(2 * time.Second)

// A silence tracks how long a peer's TCP has left octets or probes unacknowledged.
type silence struct {
	looked int64 // time of the last look, on the engine's clock; 0 for never
	since  int64 // time since which an acknowledgement is due; 0 for none
}

// look evaluates the kernel's report at time now: owed is whether octets or a probe wait for an
// acknowledgement, and heard is how long ago the last acknowledgement arrived. It returns how
// long the peer has been silent. Octets that this look is the first to see were sent after the
// previous look.
func (s *silence) look(now int64, owed bool, heard time.Duration) time.Duration {
	before := s.looked
	s.looked = now
	if !owed {
		s.since = 0
		return 0
	}
	switch at := now - int64(heard); {
	case before == 0 || now-before > silenceGap:
		s.since = now
	case s.since == 0:
		s.since = max(before, at)
	default:
		s.since = max(s.since, at)
	}
	return time.Duration(now - s.since)
}
