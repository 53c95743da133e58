//go:build !linux

package iwarptest

import (
	"errors"
	"syscall"
)

// On other systems a Loop copies the octets that it writes, and Read reads nothing.
const rawSupported = false

type iovecs struct{}

type rawIO struct{}

func (*rawIO) init() {}

func (*rawIO) read(syscall.RawConn, []byte) int { return 0 }

func (*rawIO) writev(syscall.RawConn, *iovecs, [][]byte) (int, bool, error) {
	return 0, false, errors.ErrUnsupported
}

func (*rawIO) waitWritable(syscall.RawConn) error { return errors.ErrUnsupported }

func mss(syscall.RawConn) int { return 0 }
