package tcpframe

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// silenceGap is the longest time between two looks at a socket in which the peer counts as
// silent. If more time has passed, this process did not run meanwhile, and the peer's octets
// may still be unread.
const silenceGap = int64(2 * time.Second)

// minSilent is the least SilentTimeout. Linux answers at most one probe of a closed window
// in 500 ms: it ignores the second probe, which comes too early, and answers the third one,
// 0.8 s later. Only a longer silence means that the host is gone.
const minSilent = 2 * time.Second

// silentFor returns the silence after which a peer's host counts as gone. It is less than
// SilentTimeout, because keepalive takes time to ask and sweeps are late.
func silentFor(silent time.Duration) time.Duration { return silent / 8 * 5 }

// keepAliveFor returns the probes of an idle connection. With a SilentTimeout, one is sent
// in every quarter of it.
func keepAliveFor(silent time.Duration) net.KeepAliveConfig {
	if silent <= 0 {
		return net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 4}
	}
	every := max(silent/4, time.Second) // the kernel counts in seconds
	return net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 4}
}

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

// Silent implements loop.WatchedSocket. The TCP of a host that is there acknowledges
// octets, the probes of a closed window and keepalive probes, no matter what its processes
// do.
func (s *socket) Silent() time.Duration {
	if s.gone {
		return 0
	}
	ti, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	// When a peer shrinks a window that was already used, octets stay unacknowledged, and
	// are sent again at growing intervals. The peer is silent only if it has not answered
	// the last time.
	owed := ti.Probes > 0 || ti.Unacked > 0 && ti.Last_data_sent < ti.Last_ack_recv
	return s.quiet.look(s.loop.Now(), owed, time.Duration(ti.Last_ack_recv)*time.Millisecond)
}
