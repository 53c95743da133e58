package eventloop

import (
	"io"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

type IOVec = unix.Iovec

// A conn is what gnet has for a socket.
type conn interface {
	Dup() (int, error)
	Fd() int
	SetContext(any)
}

// A Socket implements loop.WatchedSocket. Its loop owns it.
type Socket struct {
	loop          *Loop
	stream        loop.Stream
	local, remote netip.AddrPort

	gc conn // nil before Attached, while the socket is away from its loop, and after Detached
	fd int  // -1 before Attached and after Detached: then every system call fails

	closing   bool  // shut was called: only Detached will be called
	gone      bool  // Detached was called, or is about to be
	end       error // error for Detached, if closing is set
	dirty     bool  // in Loop.dirty
	late      bool  // in Loop.late
	stale     bool  // in Loop.stale
	paused    bool  // nothing is read
	full      bool  // Writable is called when the kernel takes octets again
	more      bool  // Writable is called in the next pass
	returning bool  // it is on its way back to its loop
	watch     *watch
	quiet     silence
	heard     uint64 // value of Loop.sweeps when octets last arrived
	pass      uint64 // value of Loop.pass when octets were last written
	put       int    // octets written in that pass
}

// Writev implements loop.Socket.
func (s *Socket) Writev(bufs [][]byte) (int, error) {
	if s.gone {
		return 0, ErrClosed
	}
	total := 0
	for len(bufs) > 0 {
		iov := s.loop.iov[:0]
		want := 0
		for len(bufs) > 0 && len(iov) < MaxIOV {
			iov = AppendIOV(iov, bufs[0])
			want += len(bufs[0])
			bufs = bufs[1:]
		}
		n, err := s.WriteIOV(iov, want)
		total += n
		if n < want || err != nil {
			return total, err
		}
	}
	return total, nil
}

func AppendIOV(iov []IOVec, b []byte) []IOVec {
	if len(b) == 0 {
		return iov
	}
	v := IOVec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return append(iov, v)
}

// WriteIOV writes iov, which holds want octets, and clears it. It writes less when the kernel
// takes less, or when the socket has used its share of the pass; then Stream.Writable
// follows.
func (s *Socket) WriteIOV(iov []IOVec, want int) (int, error) {
	if want == 0 {
		return 0, nil
	}
	l := s.loop
	if s.pass != l.pass {
		s.pass, s.put = l.pass, 0
	}
	now, share := iov, min(want, s.Spare())
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
		s.GoOn()
	}
	return int(n), nil
}

// writable reports whether the kernel would take a large part of its buffer.
func (s *Socket) writable() bool {
	p := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(p[:], 0)
	return n > 0 || err != nil
}

// GoOn makes the loop call Writable once, in the next pass.
func (s *Socket) GoOn() {
	s.more = true
	s.lateSoon()
}

func (s *Socket) lateSoon() {
	if !s.late {
		s.late = true
		s.loop.late = append(s.loop.late, s)
	}
}

// Spare returns how many octets more the socket may write in this pass.
func (s *Socket) Spare() int {
	if s.pass != s.loop.pass {
		return s.loop.share.put
	}
	return max(0, s.loop.share.put-s.put) // the share may have become smaller in this pass
}

// upTo returns the first n octets of iov, which it shortens in place.
func upTo(iov []IOVec, n int) []IOVec {
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
func (s *Socket) Read(p []byte) (int, error) {
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

// Away reports whether the socket has no gnet connection.
func (s *Socket) Away() bool { return s.gc == nil }

// SetPaused stops or starts reading. gnet may bring one read of octets after it has stopped.
func (s *Socket) SetPaused(on bool) {
	if s.gone || s.paused == on {
		return
	}
	s.paused = on
	if s.Away() {
		s.updateSoon()
	}
}

// FlushSoon implements loop.Socket.
func (s *Socket) FlushSoon() {
	if !s.dirty && !s.closing {
		s.dirty = true
		s.loop.dirty = append(s.loop.dirty, s)
	}
}

// Descriptor returns the socket's descriptor, for options and ioctls. It is another one after the socket has left its loop
// or come back, and -1 after Detached.
func (s *Socket) Descriptor() int { return s.fd }

// Paused reports whether SetPaused has stopped reading.
func (s *Socket) Paused() bool { return s.paused }

// FlushPending reports whether Flush is called at the end of this pass.
func (s *Socket) FlushPending() bool { return s.dirty }

// ended returns the error that the socket has, or io.EOF for none. gnet also says io.EOF when the first that it sees of a
// reset is that there is an error.
func (s *Socket) ended() error {
	if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
		return os.NewSyscallError("read", unix.Errno(n))
	}
	return io.EOF
}

// Closing reports whether only Detached is going to be called.
func (s *Socket) Closing() bool { return s.closing }

// FlushLate implements loop.Socket.
func (s *Socket) FlushLate() {
	if !s.dirty && !s.closing {
		s.lateSoon()
	}
}

// CloseWrite implements loop.Socket.
func (s *Socket) CloseWrite() error {
	return os.NewSyscallError("shutdown", unix.Shutdown(s.fd, unix.SHUT_WR))
}

// Close implements loop.Socket.
func (s *Socket) Close() { s.shut(nil) }

// Abort implements loop.Socket.
func (s *Socket) Abort() {
	if !s.gone { // the descriptor is still open inside Detached, and ends as it would have
		_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	s.shut(nil)
}

// shut makes the loop call Detached(err) at the end of the pass.
func (s *Socket) shut(err error) {
	if s.closing {
		return
	}
	s.closing, s.end = true, err
	s.loop.closing = append(s.loop.closing, s)
}

// LocalAddr implements loop.Socket.
func (s *Socket) LocalAddr() netip.AddrPort { return s.local }

// RemoteAddr implements loop.Socket.
func (s *Socket) RemoteAddr() netip.AddrPort { return s.remote }

// MSS implements loop.Socket. TCP_MAXSEG of a connected socket is tcpi_snd_mss.
func (s *Socket) MSS() int {
	n, _ := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG) // 0 after an error
	return n
}

// InputWaits reports whether octets wait to be read. It takes nothing.
func (s *Socket) InputWaits() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(s.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n > 0 && err == nil
}

// updateSoon makes the loop look at the end of the pass whether the socket has to come back or to be watched.
func (s *Socket) updateSoon() {
	if !s.stale {
		s.stale = true
		s.loop.stale = append(s.loop.stale, s)
	}
}
