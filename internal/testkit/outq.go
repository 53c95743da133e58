package testkit

import (
	"syscall"
	"unsafe"
)

// Unacknowledged returns how many octets of the TCP connection c the peer's TCP has not acknowledged, those that
// wait to be sent included. It is 0 if c is closed or was reset.
func Unacknowledged(c syscall.Conn) int {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var n int32
	_ = rc.Control(func(fd uintptr) {
		const tcpClose = 7 // the kernel still counts the octets that were lost
		if info, err := syscall.GetsockoptInet4Addr(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO); err != nil || info[0] == tcpClose {
			return
		}
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n)))
	})
	return int(n)
}

// Unread returns how many octets have come for the TCP connection c that nobody has read yet. What a peer on this host
// has written is among them when its system call has returned.
func Unread(c syscall.Conn) int {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var n int32
	_ = rc.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&n)))
	})
	return int(n)
}
