package tcpframe

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// userTimeout is TCP_USER_TIMEOUT: it bounds how long written octets may stay
// unacknowledged, and ends connections whose peer keeps its window closed and is gone.
const userTimeout = 2 * time.Minute

// localSendBuffer is SO_SNDBUF towards a peer on this host; the kernel doubles it.
//
// The kernel's own choice grows to megabytes. Octets are on their way to such a peer for
// no longer than the peer takes to be scheduled, and a longer queue only pushes
// everything else out of the cache. 256 KiB was better than 128 KiB, 512 KiB and the
// kernel's choice: by a third, with four connections of 1 MiB Replies. For other peers the
// kernel knows better how much the path holds.
const localSendBuffer = 256 << 10

// tune sets the options of a connected socket.
func tune(c *net.TCPConn) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	local := onThisHost(c)
	var failed error
	err = rc.Control(func(fd uintptr) {
		if local {
			if e := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, localSendBuffer); e != nil {
				failed = fmt.Errorf("SO_SNDBUF: %w", os.NewSyscallError("setsockopt", e))
				return
			}
		}
		if e := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())); e != nil {
			failed = fmt.Errorf("TCP_USER_TIMEOUT: %w", os.NewSyscallError("setsockopt", e))
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// onThisHost reports whether the peer's address is known to be one of this host: a
// loopback address, or the local address of the socket.
func onThisHost(c net.Conn) bool {
	peer, self := eventloop.AddrPort(c.RemoteAddr()).Addr(), eventloop.AddrPort(c.LocalAddr()).Addr()
	return peer.IsLoopback() || peer.IsValid() && peer == self
}
