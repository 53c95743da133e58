package iwarptest

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

const rawSupported = true

// iovMax is the kernel's UIO_MAXIOV.
const iovMax = 1024

// iovecs is the loop's scratch for writev(2).
type iovecs struct{ v [iovMax]unix.Iovec }

// A rawIO makes system calls on a socket without blocking. Its closures are made
// once, so that no call allocates. read and writev run on the loop. waitWritable
// runs on the writer, never while the loop is in writev.
type rawIO struct {
	readFn, writeFn, waitFn func(fd uintptr) bool

	readBuf []byte
	readN   int

	vec    *iovecs
	vecLen int
	wroteN int
	errno  syscall.Errno

	poll [1]unix.PollFd
}

func (r *rawIO) init() {
	r.readFn = func(fd uintptr) bool {
		for {
			n, err := syscall.Read(int(fd), r.readBuf)
			if err == syscall.EINTR {
				continue
			}
			r.readN = max(n, 0)
			return true
		}
	}
	r.writeFn = func(fd uintptr) bool {
		if testkit.RaceEnabled {
			// The race detector does not know SYS_WRITEV. A write of no octets tells it
			// that accesses before this Writev happen before the Read that gets the octets,
			// in tests that have both ends in one process.
			_, _ = syscall.Write(int(fd), nil)
		}
		for {
			n, _, e := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&r.vec.v[0])), uintptr(r.vecLen))
			switch e {
			case unix.EINTR:
				continue
			case 0:
				r.wroteN = int(n)
			case unix.EAGAIN:
				e = 0
			}
			r.errno = e
			return true
		}
	}
	// Go's poller is edge triggered. Polling the state after the poller was reset makes
	// sure that no edge is missed.
	r.waitFn = func(fd uintptr) bool {
		r.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		n, err := unix.Poll(r.poll[:], 0)
		return err != unix.EINTR && n != 0
	}
}

func (r *rawIO) read(c syscall.RawConn, p []byte) int {
	r.readBuf, r.readN = p, 0
	_ = c.Read(r.readFn)
	r.readBuf = nil
	return r.readN
}

// writev writes until bufs are written or the socket is full.
func (r *rawIO) writev(c syscall.RawConn, v *iovecs, bufs [][]byte) (total int, short bool, err error) {
	for len(bufs) > 0 {
		n, want := 0, 0
		for n < iovMax && len(bufs) > 0 {
			if b := bufs[0]; len(b) > 0 {
				v.v[n].Base = unsafe.SliceData(b)
				v.v[n].SetLen(len(b))
				want += len(b)
				n++
			}
			bufs = bufs[1:]
		}
		if n == 0 {
			break
		}
		r.vec, r.vecLen, r.wroteN, r.errno = v, n, 0, 0
		err = c.Write(r.writeFn)
		clear(v.v[:n])
		if err == nil && r.errno != 0 {
			err = r.errno
		}
		total += r.wroteN
		if err != nil || r.wroteN < want {
			return total, true, err
		}
	}
	return total, false, nil
}

func (r *rawIO) waitWritable(c syscall.RawConn) error { return c.Write(r.waitFn) }

// mss returns the connection's current segment size, which is mss_cache in the kernel.
func mss(c syscall.RawConn) (n int) {
	_ = c.Control(func(fd uintptr) {
		n, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	})
	return n
}
