package iwarptest

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A socket is a socket attached to a Loop.
type socket struct {
	loop   *Loop // constant
	conn   net.Conn
	raw    syscall.RawConn // nil when the connection has none that rawIO can use
	stream loop.Stream

	consumedc chan struct{} // one deep; filled when the loop no longer uses buf
	waitc     chan struct{} // one deep; filled when the loop wants Writable to be called
	donec     chan struct{} // closed when the socket is detached

	// Written by the reader before it posts, read by the loop before it sends to
	// consumedc.
	buf []byte
	n   int
	err error

	// Owned by the loop.
	closed     bool // Close or Abort was called
	detached   bool
	flushAsked bool
	blocked    bool // the writer is waiting for room
	io         rawIO

	mu      sync.Mutex // guards the rest, which serves sockets without raw; a leaf
	pending []byte     // accepted by Writev, not yet written
	short   bool       // Writev accepted less than all
	half    bool       // CloseWrite was called; the writer obeys when pending is written
	fin     bool       // Close was called; the writer obeys when pending is written
}

// pendingMax bounds the octets that Writev accepts before they are written.
const pendingMax = 256 << 10

func newSocket(l *Loop, c net.Conn, st loop.Stream) *socket {
	s := &socket{
		loop: l, conn: c, stream: st,
		buf:       make([]byte, 64<<10),
		consumedc: make(chan struct{}, 1),
		waitc:     make(chan struct{}, 1),
		donec:     make(chan struct{}),
	}
	if sc, ok := c.(*net.TCPConn); ok && rawSupported {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw = raw
			s.io.init()
		}
	}
	return s
}

func (s *socket) readLoop() {
	defer s.loop.wg.Done()
	for {
		s.n, s.err = s.conn.Read(s.buf)
		failed := s.err != nil
		s.loop.Post((*received)(s))
		select {
		case <-s.consumedc:
		case <-s.donec:
			return
		}
		if failed {
			return
		}
	}
}

// received is the task that hands buf to the Stream.
type received socket

func (r *received) Run() {
	s := (*socket)(r)
	if s.detached {
		return
	}
	if s.n > 0 && !s.closed {
		s.stream.Received(s.buf[:s.n])
	}
	if err := s.err; err != nil {
		if s.closed {
			err = nil
		}
		s.end(err)
		return
	}
	s.consumedc <- struct{}{}
}

func (s *socket) writeLoop() {
	defer s.loop.wg.Done()
	for {
		select {
		case <-s.waitc:
		case <-s.donec:
			return
		}
		if s.raw != nil {
			// The next Writev returns the error, if there is one.
			_ = s.io.waitWritable(s.raw)
			s.loop.Post((*writable)(s))
			continue
		}
		s.writePending()
	}
}

// writePending writes until pending is empty.
func (s *socket) writePending() {
	var out []byte
	for {
		s.mu.Lock()
		out = append(out[:0], s.pending...)
		s.pending = s.pending[:0]
		short, half, fin := s.short, s.half, s.fin
		s.short = false
		s.mu.Unlock()
		if short {
			s.loop.Post((*writable)(s))
		}
		if len(out) == 0 {
			if half {
				_ = s.conn.(halfCloser).CloseWrite()
			}
			if fin {
				s.conn.Close()
			}
			return
		}
		if _, err := s.conn.Write(out); err != nil {
			s.conn.Close() // makes the reader fail
			return
		}
	}
}

type writable socket

func (w *writable) Run() {
	s := (*socket)(w)
	s.blocked = false
	if !s.detached && !s.closed {
		s.stream.Writable()
	}
}

// end detaches the socket.
func (s *socket) end(err error) {
	if s.detached {
		return
	}
	s.detached = true
	delete(s.loop.socks, s)
	s.conn.Close()
	close(s.donec)
	s.stream.Detached(err)
}

// Writev implements loop.Socket.
func (s *socket) Writev(bufs [][]byte) (int, error) {
	if s.closed || s.detached {
		return 0, net.ErrClosed
	}
	if s.blocked {
		return 0, nil
	}
	if s.raw == nil {
		return s.take(bufs), nil
	}
	total, short, err := s.io.writev(s.raw, &s.loop.vec, bufs)
	if short && err == nil {
		s.blocked = true
		s.waitc <- struct{}{}
	}
	return total, err
}

// take copies bufs to pending, as far as there is room.
func (s *socket) take(bufs [][]byte) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range bufs {
		k := min(len(b), pendingMax-len(s.pending))
		s.pending = append(s.pending, b[:k]...)
		n += k
		if k < len(b) {
			s.short = true
			s.blocked = true
			break
		}
	}
	s.wakeWriter()
	return n
}

func (s *socket) wakeWriter() {
	select {
	case s.waitc <- struct{}{}:
	default:
	}
}

// Read implements loop.Socket.
func (s *socket) Read(p []byte) (int, error) {
	if s.raw == nil || s.closed || s.detached || len(p) == 0 {
		return 0, nil
	}
	return s.io.read(s.raw, p), nil
}

// FlushSoon implements loop.Socket.
func (s *socket) FlushSoon() {
	if !s.flushAsked && !s.detached {
		s.flushAsked = true
		s.loop.flushes = append(s.loop.flushes, s)
	}
}

// FlushLate implements loop.Socket. Sockets of a Loop have no turns, so it is FlushSoon.
func (s *socket) FlushLate() { s.FlushSoon() }

// CloseWrite implements loop.Socket.
func (s *socket) CloseWrite() error {
	c, ok := s.conn.(halfCloser)
	switch {
	case !ok:
		return errors.ErrUnsupported
	case s.raw != nil:
		return c.CloseWrite()
	}
	s.mu.Lock()
	s.half = true
	s.mu.Unlock()
	s.wakeWriter()
	return nil
}

// A halfCloser is a connection that can close one direction.
type halfCloser interface{ CloseWrite() error }

// Close implements loop.Socket. Closing makes the reader fail, and its post detaches the
// socket.
func (s *socket) Close() {
	if s.closed || s.detached {
		return
	}
	s.closed = true
	if s.raw == nil {
		s.mu.Lock()
		s.fin = true
		s.mu.Unlock()
		s.wakeWriter()
		return
	}
	s.conn.Close()
}

// Abort implements loop.Socket.
func (s *socket) Abort() {
	if s.detached {
		return
	}
	s.closed = true
	if c, ok := s.conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	s.conn.Close()
}

// LocalAddr implements loop.Socket.
func (s *socket) LocalAddr() netip.AddrPort { return addrPort(s.conn.LocalAddr()) }

// RemoteAddr implements loop.Socket.
func (s *socket) RemoteAddr() netip.AddrPort { return addrPort(s.conn.RemoteAddr()) }

// MSS implements loop.Socket.
func (s *socket) MSS() int {
	if s.raw == nil {
		return 0
	}
	return mss(s.raw)
}

// addrPort converts a TCP address. Other addresses become the zero value.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
