package eventloop

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Measure implements loop.MeasuredSocket.
func (s *Socket) Measure() (loop.TCP, bool) {
	ti, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return loop.TCP{}, false
	}
	unread, _ := unix.IoctlGetInt(s.fd, unix.SIOCINQ) // 0 after an error
	return loop.TCP{
		RTT:         time.Duration(ti.Rtt) * time.Microsecond,
		Retransmits: uint64(ti.Total_retrans), Needless: uint64(ti.Dsack_dups), Segments: uint64(ti.Segs_out),
		Received: uint64(ti.Segs_in), OutOfOrder: uint64(ti.Rcv_ooopack), Unacked: uint64(ti.Unacked),
		Unsent: uint64(ti.Notsent_bytes), Unread: uint64(max(0, unread)),
		Away: owes(ti) && max(ti.Retransmits, ti.Probes) >= manyAttempts,
	}, true
}

// manyAttempts is how often in a row the kernel has sent the same octets again, or probed, when a host that acknowledges
// nothing counts as away. It waits for 200 ms or more before the first time, and twice as long before each one more.
const manyAttempts = 3

// owes reports whether the peer's TCP owes an acknowledgement. When a peer shrinks a window that was already used, octets
// stay unacknowledged, and are sent again at growing intervals. The peer owes one only if it has not answered the last time.
func owes(ti *unix.TCPInfo) bool {
	return ti.Probes > 0 || ti.Unacked > 0 && ti.Last_data_sent < ti.Last_ack_recv
}

// Silent implements loop.WatchedSocket. The TCP of a host that is there acknowledges
// octets, the probes of a closed window and keepalive probes, no matter what its processes
// do.
func (s *Socket) Silent() time.Duration {
	ti, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return s.quiet.look(s.loop.clock, owes(ti), time.Duration(ti.Last_ack_recv)*time.Millisecond)
}
