package iwarp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent octets may stay unacknowledged.
func setUserTimeout(c syscall.RawConn, ms int) (err error) {
	e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms)
	})
	if err == nil {
		err = e
	}
	return err
}

// portOfPeer is for net.Dialer.Control: a socket that is bound to an address gets its port when the peer is
// known. There are then 64 Ki ports for each peer, rather than in all. Old kernels lack the option.
func portOfPeer(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
}

// waiting reports whether octets wait to be read, without reading them.
func waiting(c syscall.RawConn) (yes bool) {
	_ = c.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		yes = err == nil && n > 0
	})
	return yes
}
