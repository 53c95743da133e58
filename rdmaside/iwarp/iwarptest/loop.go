package iwarptest

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A Loop is a loop.SocketLoop made of plain goroutines, for tests, tools, and
// whoever has no event loop: one goroutine with a mailbox is the loop, and each
// socket has one that reads and one that waits for room to write.
type Loop struct {
	mu      sync.Mutex // guards queue and stopped; a leaf
	queue   []loop.Task
	stopped bool

	wakec chan struct{}  // one deep: when it is full the loop is awake already
	donec chan struct{}  // closed when the loop has ended
	wg    sync.WaitGroup // the sockets' goroutines

	// Owned by the loop goroutine.
	spare   []loop.Task
	flushes []*socket // FlushSoon was called
	flushed []*socket // spare of flushes
	socks   map[*socket]struct{}
	vec     iovecs
}

var _ loop.SocketLoop = (*Loop)(nil)

// NewLoop starts a loop. Stop ends it.
func NewLoop() *Loop {
	l := &Loop{
		wakec: make(chan struct{}, 1),
		donec: make(chan struct{}),
		socks: make(map[*socket]struct{}),
	}
	go l.run()
	return l
}

// Post implements loop.Loop.
func (l *Loop) Post(t loop.Task) {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	l.queue = append(l.queue, t)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first {
		l.wake()
	}
}

func (l *Loop) wake() {
	select {
	case l.wakec <- struct{}{}:
	default:
	}
}

// Attach implements loop.SocketLoop. c may be any net.Conn; one that is not a
// TCP connection costs a copy of what is written.
func (l *Loop) Attach(c net.Conn, st loop.Stream) error {
	t := &attachTask{s: newSocket(l, c, st), runc: make(chan struct{})}
	l.Post(t)
	select {
	case <-t.runc:
		return nil
	case <-l.donec:
	}
	select {
	case <-t.runc: // both were ready
		return nil
	default:
	}
	c.Close()
	return loop.ErrStopped
}

// Do runs f on the loop and waits for it. It must not be called on the loop.
func (l *Loop) Do(f func()) {
	done := make(chan struct{})
	l.Post(loop.TaskFunc(func() {
		defer close(done)
		f()
	}))
	<-done
}

// Stop ends the loop and the sockets attached to it: their Streams get
// Detached(loop.ErrStopped). It returns when every goroutine has ended, and must
// not be called on the loop.
func (l *Loop) Stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.wake()
	<-l.donec
	l.wg.Wait()
}

func (l *Loop) run() {
	defer close(l.donec)
	for {
		l.mu.Lock()
		q, stopped := l.queue, l.stopped
		l.queue = l.spare[:0]
		l.mu.Unlock()
		for i, t := range q {
			t.Run()
			q[i] = nil
		}
		l.spare = q[:0]
		l.flush()
		switch {
		case stopped:
			for s := range l.socks {
				s.end(loop.ErrStopped)
			}
			return
		case len(q) == 0 && len(l.flushes) == 0:
			<-l.wakec
		}
	}
}

// flush calls Stream.Flush where it was asked for. Flushing one socket may ask for
// another's flush; a few rounds of that belong to this pass.
func (l *Loop) flush() {
	for range 4 {
		if len(l.flushes) == 0 {
			return
		}
		l.flushes, l.flushed = l.flushed[:0], l.flushes
		for i, s := range l.flushed {
			l.flushed[i] = nil
			s.flushAsked = false
			if !s.detached {
				s.stream.Flush()
			}
		}
	}
}

type attachTask struct {
	s    *socket
	runc chan struct{} // closed when the task runs
}

func (t *attachTask) Run() {
	s := t.s
	s.loop.socks[s] = struct{}{}
	close(t.runc)
	s.stream.Attached(s)
	if s.detached {
		return
	}
	s.loop.wg.Add(2)
	go s.readLoop()
	go s.writeLoop()
}

// A socket is a socket attached to a Loop.
type socket struct {
	loop   *Loop // constant
	conn   net.Conn
	raw    syscall.RawConn // nil when the connection has none we can use
	stream loop.Stream

	consumedc chan struct{} // one deep; the loop is done with buf
	waitc     chan struct{} // one deep; the loop wants Writable
	donec     chan struct{} // closed when the socket has ended

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

	mu      sync.Mutex // guards what follows, used without raw; a leaf
	pending []byte     // taken by Writev, not yet written
	short   bool       // Writev took less than all
	half    bool       // CloseWrite once pending is written
	fin     bool       // close once pending is written
}

// pendingMax is how much Writev takes ahead of a connection that blocks.
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
			// An error shows at the next Writev.
			_ = s.io.waitWritable(s.raw)
			s.loop.Post((*writable)(s))
			continue
		}
		s.writePending()
	}
}

// writePending writes what Writev took, until nothing is left.
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
			s.conn.Close() // the reader sees it
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

// take copies bufs for the writer, as far as there is room.
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

// FlushLate implements loop.Socket. A Loop has no turns to wait for.
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

// A halfCloser is a connection that can be closed one way.
type halfCloser interface{ CloseWrite() error }

// Close implements loop.Socket. Closing makes the reader return, and what it
// posts detaches the socket.
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

// addrPort is the address in netip's words, the zero value if it has none.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
