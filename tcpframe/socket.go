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

	gc     gnetConn // nil before Attached and after Detached
	fd     int      // -1 before Attached and after Detached
	opened bool     // OnOpen saw it

	closing bool   // shut was called: only Detached will be called
	gone    bool   // Detached was called, or is about to be
	end     error  // error for Detached, if closing is set
	dirty   bool   // in loop.dirty
	late    bool   // in loop.late
	paused  bool   // its read events are taken from gnet's registration
	watched bool   // registered with the loop's nested epoll instance
	waits   uint32 // the epoll events that the socket waits for, apart from gnet's registration
	quiet   silence
	heard   uint64 // value of loop.sweeps when octets last arrived
	pass    uint64 // value of loop.pass when octets were last written
	put     int    // octets written in that pass

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
	now := iov
	if want > l.share.put-s.put {
		now = upTo(iov, l.share.put-s.put)
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
	if int(n) < want {
		if err := s.await(); err != nil {
			return int(n), err
		}
	}
	return int(n), nil
}

// spare returns how many octets more the socket may write in this pass.
func (s *socket) spare() int {
	if s.pass != s.loop.pass {
		return s.loop.share.put
	}
	return s.loop.share.put - s.put
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

// await makes the loop call Writable once, when the socket is writable.
func (s *socket) await() error { return s.awaitEvents(unix.EPOLLOUT) }

// awaitEvents adds events to those for which the loop looks once.
func (s *socket) awaitEvents(events uint32) error {
	if s.waits&events == events || s.gone {
		return nil
	}
	l := s.loop
	op := unix.EPOLL_CTL_MOD
	if !s.watched {
		op = unix.EPOLL_CTL_ADD
	}
	ev := unix.EpollEvent{Events: s.waits | events | unix.EPOLLONESHOT, Fd: int32(s.fd)}
	if err := unix.EpollCtl(l.gate.out, op, s.fd, &ev); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	s.watched = true
	s.waits |= events
	l.waiting[int32(s.fd)] = s
	return nil
}

// ready calls the methods of the stream that wait for events, and goes on waiting for the other
// events.
func (s *socket) ready(events uint32) {
	const broken = unix.EPOLLHUP | unix.EPOLLERR
	had := s.waits
	s.waits = 0
	if s.closing {
		return
	}
	writable := had&unix.EPOLLOUT != 0 && events&(unix.EPOLLOUT|broken) != 0
	input := had&unix.EPOLLIN != 0 && events&(unix.EPOLLIN|unix.EPOLLRDHUP|broken) != 0
	rest := had
	if writable {
		rest &^= unix.EPOLLOUT
	}
	if input {
		rest &^= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if rest != 0 {
		if err := s.awaitEvents(rest); err != nil {
			s.shut(err)
		}
	}
	if writable {
		s.stream.Writable()
	}
	if in, ok := s.stream.(inputStream); ok && input && !s.closing {
		in.Input()
	}
}

// detach removes the socket, whose descriptor is still open, from the nested epoll instance:
// another socket may soon have the same descriptor number.
func (s *socket) detach() {
	if s.waits != 0 {
		delete(s.loop.waiting, int32(s.fd))
		s.waits = 0
	}
	if s.watched {
		_ = unix.EpollCtl(s.loop.gate.out, unix.EPOLL_CTL_DEL, s.fd, nil)
		s.watched = false
	}
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
		return 0, nil // EAGAIN, or an end that gnet will notice too
	}
	s.loop.left -= n
	return n, nil
}

// setPaused stops or starts reading. Events that are on their way still arrive: Received
// may be called once while the socket is paused.
func (s *socket) setPaused(on bool) {
	if s.gone || s.paused == on {
		return
	}
	ev := unix.EpollEvent{Events: readEvents, Fd: int32(s.fd)}
	if on {
		ev.Events = 0
	}
	if err := unix.EpollCtl(s.loop.gate.epfd, unix.EPOLL_CTL_MOD, s.fd, &ev); err != nil {
		s.shut(os.NewSyscallError("epoll_ctl", err))
		return
	}
	s.paused = on
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
	if s.dirty || s.late || s.closing {
		return
	}
	s.late = true
	l := s.loop
	if len(l.late) == 0 {
		l.ring()
	}
	l.late = append(l.late, s)
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
