package testkit

import (
	"syscall"
	"unsafe"
)

// Unacknowledged returns how many octets of the TCP connection c the peer's TCP has not acknowledged, those that
// wait to be sent included. It is 0 if c is closed or was reset.
func Unacknowledged(c syscall.Conn) int {
	return queued(c, func(fd uintptr) int32 {
		const tcpClose = 7 // the kernel still counts the octets that were lost
		if info, err := syscall.GetsockoptInet4Addr(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO); err != nil || info[0] == tcpClose {
			return 0
		}
		return octetsBy(fd, syscall.TIOCOUTQ)
	})
}

// Unread returns how many octets have come for the TCP connection c that nobody has read yet. What a peer on this host
// has written is among them when its system call has returned.
func Unread(c syscall.Conn) int {
	return queued(c, func(fd uintptr) int32 { return octetsBy(fd, syscall.TIOCINQ) })
}

// queued returns the result of f for the descriptor of c, or 0 if c is closed.
func queued(c syscall.Conn, f func(fd uintptr) int32) (n int) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = rc.Control(func(fd uintptr) { n = int(f(fd)) })
	return n
}

// octetsBy asks the kernel for a number of octets.
func octetsBy(fd, request uintptr) (n int32) {
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&n)))
	return n
}
