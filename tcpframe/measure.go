package tcpframe

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Measure implements loop.MeasuredSocket.
func (s *socket) Measure() (loop.TCP, bool) {
	if s.gone {
		return loop.TCP{}, false
	}
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
	}, true
}

// Measure tells what the kernel knows of the connection. It costs two system calls.
func (c *Conn) Measure() (loop.TCP, bool) {
	if c.state == opening || c.state == closed {
		return loop.TCP{}, false
	}
	return c.sock.Measure()
}
