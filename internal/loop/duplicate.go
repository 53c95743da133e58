package loop

import (
	"os"
	"syscall"
)

// Duplicate returns another descriptor of the socket c, which stays non-blocking. The method File of package net's
// types does the same, but whoever asks that File for its descriptor, such as net.FileListener, makes the socket blocking for
// a moment. If a goroutine that accepts on c calls the kernel then, it comes back with the next connection, and not
// when c is closed: nobody who closes c comes back before.
func Duplicate(c syscall.Conn) (*os.File, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd uintptr
	var errno syscall.Errno
	if err := rc.Control(func(s uintptr) {
		fd, _, errno = syscall.Syscall(syscall.SYS_FCNTL, s, syscall.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, os.NewSyscallError("fcntl", errno)
	}
	return os.NewFile(fd, "socket"), nil
}
