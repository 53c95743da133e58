package tcpframe

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// localSendBuffer is SO_SNDBUF towards a peer on this host, which the kernel
// doubles. Left alone it grows to megabytes. Nothing is on its way for longer than
// the peer takes to be scheduled, so that all a longer queue does is to push
// everything else out of the cache: 256 KiB was better than 128 KiB, 512 KiB and
// the kernel's choice, by a third with four connections of 1 MiB Replies.
// Elsewhere the kernel knows better what a path holds.
const localSendBuffer = 256 << 10

// tune sets the options of a connected socket. d is TCP_USER_TIMEOUT, as
// ListenOptions has it: it bounds how long written octets may stay unacknowledged,
// and ends connections whose peer keeps its window closed and is gone.
func tune(c *net.TCPConn, d time.Duration) error {
	setDefault(&d, defaultUserTimeout)
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
		if d < 0 {
			return
		}
		if e := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds())); e != nil {
			failed = fmt.Errorf("TCP_USER_TIMEOUT: %w", os.NewSyscallError("setsockopt", e))
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// onThisHost reports whether the peer is at an address of this host, as far as one
// socket tells.
func onThisHost(c net.Conn) bool {
	peer, self := addrPort(c.RemoteAddr()).Addr(), addrPort(c.LocalAddr()).Addr()
	return peer.IsLoopback() || peer.IsValid() && peer == self
}
