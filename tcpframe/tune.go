package tcpframe

import (
	"errors"
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

// tune sets the options of a connected socket whose peer may be silent for so long: see ConnOptions.SilentTimeout.
func tune(c *net.TCPConn, silent time.Duration) error {
	if err := c.SetKeepAliveConfig(keepAliveFor(silent)); err != nil {
		return err
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	local := onThisHost(c)
	var failed error
	err = rc.Control(func(fd uintptr) {
		if local {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, localSendBuffer)
		}
		failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())))
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
}

// onThisHost reports whether the peer's address is known to be one of this host: a
// loopback address, or the local address of the socket.
func onThisHost(c net.Conn) bool {
	peer, self := eventloop.AddrPort(c.RemoteAddr()).Addr(), eventloop.AddrPort(c.LocalAddr()).Addr()
	return peer.IsLoopback() || peer.IsValid() && peer == self
}

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
