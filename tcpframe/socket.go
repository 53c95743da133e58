package tcpframe

import (
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

type iovec = unix.Iovec

// A socket implements loop.WatchedSocket. Its loop owns it.
type socket struct {
	loop          *Loop
	stream        loop.Stream
	local, remote netip.AddrPort

	gc gnetConn // nil before Attached, while the socket is away from its loop, and after Detached
	fd int      // -1 before Attached and after Detached

	closing   bool  // shut was called: only Detached will be called
	gone      bool  // Detached was called, or is about to be
	end       error // error for Detached, if closing is set
	dirty     bool  // in loop.dirty
	late      bool  // in loop.late
	stale     bool  // in loop.stale
	paused    bool  // nothing is read
	full      bool  // Writable is called when the kernel takes octets again
	more      bool  // Writable is called in the next pass
	returning bool  // it is on its way back to its loop
	awaits    bool  // Input is called before a record is read
	watch     *watch
	quiet     silence
	heard     uint64 // value of loop.sweeps when octets last arrived
	pass      uint64 // value of loop.pass when octets were last written
	put       int    // octets written in that pass

	prev, next *socket // in loop.sockets
}

// newSocket makes the socket of c, which is not attached yet.
func newSocket(l *Loop, c net.Conn, s loop.Stream) *socket {
	return &socket{loop: l, stream: s, fd: -1, local: addrPort(c.LocalAddr()), remote: addrPort(c.RemoteAddr())}
}

// Writev implements loop.Socket.
func (s *socket) Writev(bufs [][]byte) (int, error) {
	if s.gone {
		return 0, errClosed
	}
	total := 0
	for len(bufs) > 0 {
		iov := s.loop.iov[:0]
		want := 0
		for len(bufs) > 0 && len(iov) < maxIOV {
			iov = appendIOV(iov, bufs[0])
			want += len(bufs[0])
			bufs = bufs[1:]
		}
		n, err := s.writev(iov, want)
		total += n
		if n < want || err != nil {
			return total, err
		}
	}
	return total, nil
}

func appendIOV(iov []iovec, b []byte) []iovec {
	if len(b) == 0 {
		return iov
	}
	v := iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return append(iov, v)
}

// writev writes iov, which holds want octets, and clears it. It writes less when the kernel
// takes less, or when the socket has used its share of the pass; then Stream.Writable
// follows.
func (s *socket) writev(iov []iovec, want int) (int, error) {
	if want == 0 {
		return 0, nil
	}
	l := s.loop
	if s.pass != l.pass {
		s.pass, s.put = l.pass, 0
	}
	now, share := iov, min(want, s.spare())
	if share < want {
		now = upTo(iov, share)
	}
	var n uintptr
	var errno unix.Errno
	for len(now) > 0 {
		n, _, errno = unix.Syscall(unix.SYS_WRITEV, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(now))), uintptr(len(now)))
		if errno != unix.EINTR {
			break
		}
	}
	clear(iov) // its elements point into memory on loan
	if errno != 0 {
		if errno != unix.EAGAIN {
			return 0, os.NewSyscallError("writev", errno)
		}
		n = 0
	}
	s.put += int(n)
	switch {
	case int(n) < share, share < want && !s.writable():
		s.full = true
		s.updateSoon()
	case share < want:
		s.goOn()
	}
	return int(n), nil
}

// writable reports whether the kernel would take a large part of its buffer.
func (s *socket) writable() bool {
	p := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(p[:], 0)
	return n > 0 || err != nil
}

// goOn makes the loop call Writable once, in the next pass.
func (s *socket) goOn() {
	s.more = true
	s.lateSoon()
}

func (s *socket) lateSoon() {
	if !s.late {
		s.late = true
		s.loop.late = append(s.loop.late, s)
	}
}

// spare returns how many octets more the socket may write in this pass.
func (s *socket) spare() int {
	if s.pass != s.loop.pass {
		return s.loop.share.put
	}
	return max(0, s.loop.share.put-s.put) // the share may have become smaller in this pass
}

// upTo returns the first n octets of iov, which it shortens in place.
func upTo(iov []iovec, n int) []iovec {
	for i := range iov {
		if k := int(iov[i].Len); n <= k {
			iov[i].SetLen(n)
			return iov[:i+min(n, 1)]
		}
		n -= int(iov[i].Len)
	}
	return iov
}

// Read implements loop.Socket.
func (s *socket) Read(p []byte) (int, error) {
	left := s.loop.left
	if s.closing || left <= 0 || len(p) == 0 {
		return 0, nil
	}
	if len(p) > left+shareSlack {
		p = p[:left]
	}
	n, err := unix.Read(s.fd, p)
	if n <= 0 || err != nil {
		return 0, nil // EAGAIN, or an end, which the next read of the loop will find
	}
	s.loop.left -= n
	return n, nil
}

// setPaused stops or starts reading. gnet may bring one read of octets after it has stopped.
func (s *socket) setPaused(on bool) {
	if s.gone || s.paused == on {
		return
	}
	s.paused = on
	if s.away() {
		s.updateSoon()
	}
}

// FlushSoon implements loop.Socket.
func (s *socket) FlushSoon() {
	if !s.dirty && !s.closing {
		s.dirty = true
		s.loop.dirty = append(s.loop.dirty, s)
	}
}

// FlushLate implements loop.Socket.
func (s *socket) FlushLate() {
	if !s.dirty && !s.closing {
		s.lateSoon()
	}
}

// CloseWrite implements loop.Socket.
func (s *socket) CloseWrite() error {
	if s.gone {
		return errClosed
	}
	return os.NewSyscallError("shutdown", unix.Shutdown(s.fd, unix.SHUT_WR))
}

// Close implements loop.Socket.
func (s *socket) Close() { s.shut(nil) }

// Abort implements loop.Socket.
func (s *socket) Abort() {
	if !s.gone {
		_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	s.shut(nil)
}

// shut makes the loop call Detached(err) at the end of the pass.
func (s *socket) shut(err error) {
	if s.closing {
		return
	}
	s.closing, s.end = true, err
	s.loop.closing = append(s.loop.closing, s)
}

// LocalAddr implements loop.Socket.
func (s *socket) LocalAddr() netip.AddrPort { return s.local }

// RemoteAddr implements loop.Socket.
func (s *socket) RemoteAddr() netip.AddrPort { return s.remote }

// MSS implements loop.Socket. TCP_MAXSEG of a connected socket is tcpi_snd_mss.
func (s *socket) MSS() int {
	if s.gone {
		return 0
	}
	n, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// A socketList links the sockets of a loop.
type socketList struct{ head *socket }

func (l *socketList) push(s *socket) {
	if s.next = l.head; s.next != nil {
		s.next.prev = s
	}
	l.head = s
}

func (l *socketList) remove(s *socket) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}
