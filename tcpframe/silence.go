package tcpframe

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// silenceGap is the longest time between two looks at a socket that are taken for one
// silence. After a longer one it was this process that was not there: what the peer
// said meanwhile may be waiting to be read.
const silenceGap = int64(2 * time.Second)

// keepAliveFor asks an idle peer after a quarter of the time that it may be silent, and
// again as often.
func keepAliveFor(silent time.Duration) net.KeepAliveConfig {
	every := max(silent/4, time.Second) // less is nothing that the kernel knows
	return net.KeepAliveConfig{Idle: every, Interval: every, Count: 4}
}

// Of the probes of a closed window, Linux answers one in 500 ms: the second comes too
// early, and the third 0.8 s later. Silence must be longer than that to mean anything,
// and SilentTimeout 2 s at least.
//
// silentFor is what is left of the time that a peer may be silent, after keepalive has
// asked and when looks come late.
func silentFor(silent time.Duration) time.Duration { return silent / 8 * 5 }

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
	// When a peer takes back a window that was used already, what was sent stays
	// unacknowledged, and is sent again at growing intervals. The answer to the last time
	// is what counts.
	owed := ti.Probes > 0 || ti.Unacked > 0 && ti.Last_data_sent < ti.Last_ack_recv
	return s.quiet.look(s.loop.Now(), owed, time.Duration(ti.Last_ack_recv)*time.Millisecond)
}
