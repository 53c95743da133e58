package tcpframe

import (
	"time"

	"golang.org/x/sys/unix"
)

// silenceGap is the longest time between two looks at a socket that are taken for one
// silence. After a longer one it was this process that was not there: what the peer
// said meanwhile may be waiting to be read.
const silenceGap = int64(2 * time.Second)

// A silence is what is known of how long a peer's TCP has owed an answer.
type silence struct {
	looked int64 // when the socket was looked at last, on the engine's clock; 0: never
	since  int64 // since when it owes one; 0: it does not
}

// look takes in what the kernel says at time now: whether octets or a probe wait to be
// acknowledged, and how long ago anything was. It returns for how long the peer has
// been silent. What was seen for the first time now was sent after the look before.
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

// Silent implements Socket. A peer that is there acknowledges what it is sent, and the
// probes of a window that it keeps closed, and those of keepalive, whatever its
// processes do or do not.
func (s *socket) Silent() time.Duration {
	if s.gone {
		return 0
	}
	ti, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return s.quiet.look(s.loop.now(), ti.Unacked > 0 || ti.Probes > 0, time.Duration(ti.Last_ack_recv)*time.Millisecond)
}
