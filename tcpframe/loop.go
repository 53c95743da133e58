package tcpframe

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

const (
	// maxRounds is how often the end of a pass looks for work that the end of the
	// pass made. What is left then waits for sockets to have their turn.
	maxRounds = 4
	// maxBatch is the room a mailbox keeps for the next batch.
	maxBatch = 8192
	// maxIOV bounds the pieces of one writev; the kernel takes 1024.
	maxIOV = 512
	// linearOctets is how much one writev takes of short pieces joined.
	linearOctets = 32 << 10
	// writableBatch is how many writable sockets one pass serves.
	writableBatch = 64
)

// A Loop is an event loop: one goroutine, which owns connections.
type Loop struct {
	engine *Engine
	index  int
	gate   *gate

	conns atomic.Int32 // attached sockets and those on their way

	mu      sync.Mutex // guards the mailbox; a leaf
	in      []loop.Task
	state   wakeState
	stopped bool

	// Owned by the loop.
	batch    []loop.Task // the other half of in
	dirty    []*socket
	flushing []*socket // the other half of dirty
	late     []*socket // to be flushed when the gate opens
	closing  []*socket
	inPass   bool
	pass     uint64  // counts them
	current  *socket // whose gnet callback is running; closed by returning from it
	clock    int64   // now, once asked for in this pass
	left     int     // octets that Socket.Read may still move in this pass
	share    share
	sweeps   uint64 // counts them
	busy     int    // sockets heard since the last one
	sockets  socketList
	waiting  map[int32]*socket // armed for EPOLLOUT, by descriptor
	iov      []iovec
	linear   []byte // where gather joins short pieces; for one writev
	events   []unix.EpollEvent
	free     *outRecord // spare nodes of output queues
	freeLen  int
	holds    [][]byte // spare buffers of held input
}

// A wakeState says what Post has to do.
type wakeState uint8

const (
	asleep wakeState = iota // in epoll_wait, or about to be: ring
	called                  // rung, and not there yet
	awake                   // in a pass, which looks at the mailbox before it ends
)

func newLoop(e *Engine, index int, g *gate) *Loop {
	return &Loop{
		engine:  e,
		index:   index,
		gate:    g,
		share:   few,
		sweeps:  1,
		waiting: make(map[int32]*socket),
		iov:     make([]iovec, 0, maxIOV),
		linear:  make([]byte, 0, linearOctets),
		events:  make([]unix.EpollEvent, writableBatch),
	}
}

// Index is the loop's place in Engine.Loops. Any goroutine.
func (l *Loop) Index() int { return l.index }

// Post queues t to run on the loop's goroutine. It is safe for concurrent use,
// never blocks, does not allocate, and keeps the order of each poster. Many
// posts cost one wake-up, posts from the loop itself none. A task that posts
// itself takes turns with sockets. After the loop has stopped, Post drops t.
func (l *Loop) Post(t loop.Task) {
	l.mu.Lock()
	if !l.stopped {
		l.in = append(l.in, t)
		if l.state == asleep {
			l.state = called
			l.ring()
		}
	}
	l.mu.Unlock()
}

// ring wakes the loop; with mu held, so that the descriptor is open.
func (l *Loop) ring() {
	if err := l.gate.ring(); err != nil && !errors.Is(err, unix.EAGAIN) {
		panic("BUG: tcpframe: wake: " + err.Error())
	}
}

// Attach takes the connected TCP socket c, or a Unix one. s.Attached is called
// on the loop, and from then on all of s's methods run there. Attach may be
// called on any goroutine except a loop's, and waits for the loop; when it
// returns an error c is closed and no method of s was or will be called.
// Socket options set on c stay in force.
func (l *Loop) Attach(c net.Conn, s loop.Stream) error {
	sock := &socket{loop: l, stream: s, fd: -1, local: addrPort(c.LocalAddr()), remote: addrPort(c.RemoteAddr())}
	return l.attach(c, sock)
}

func (l *Loop) attach(c net.Conn, s *socket) error {
	if !l.engine.attaching() {
		c.Close()
		return errClosed
	}
	defer l.engine.attachments.Done()
	l.conns.Add(1)
	if err := l.gate.enroll(c, s); err != nil {
		l.conns.Add(-1)
		return &net.OpError{Op: "attach", Net: "tcp", Addr: c.RemoteAddr(), Err: err}
	}
	return nil
}

// attached starts s's life. It reports whether gnet must close it at once.
func (l *Loop) attached(s *socket) (end bool) {
	l.enter(s)
	l.sockets.push(s)
	s.stream.Attached(s)
	return l.leave()
}

// received is a pass: b came on s. It reports whether gnet must close s.
func (l *Loop) received(s *socket, b []byte) (end bool) {
	l.enter(s)
	l.heard(s)
	l.left = l.share.get
	s.stream.Received(b)
	l.left = 0
	return l.leave()
}

// rung is a pass: something was posted, or a socket takes more.
func (l *Loop) rung() {
	l.enter(nil)
	for i, s := range l.late {
		l.late[i] = nil
		s.late = false
		s.FlushSoon()
	}
	l.late = l.late[:0]
	if len(l.waiting) > 0 {
		l.writable()
	}
	l.leave()
}

// writable tells the sockets that take more.
func (l *Loop) writable() {
	n, err := unix.EpollWait(l.gate.out, l.events, 0)
	if err != nil {
		return // EINTR: the gate is level-triggered and opens again
	}
	for _, ev := range l.events[:n] {
		s := l.waiting[ev.Fd]
		if s == nil {
			continue // closed by one before it
		}
		delete(l.waiting, ev.Fd)
		s.waits = false
		if !s.closing {
			s.stream.Writable()
		}
	}
}

// ended is the last of s; its descriptor is still open. It runs as a pass of
// its own or inside one, when that closed s.
func (l *Loop) ended(s *socket, err error) {
	outer := l.inPass
	if !outer {
		l.enter(s)
	}
	switch {
	case s.closing:
		err = s.end
	case err == nil: // gnet stops
		err = errStopped
	}
	s.closing, s.gone = true, true
	s.detach()
	l.sockets.remove(s)
	l.conns.Add(-1)
	s.stream.Detached(err)
	s.fd, s.gc = -1, nil
	if !outer {
		l.leave()
	}
}

func (l *Loop) enter(s *socket) {
	l.inPass, l.current, l.clock = true, s, 0
	l.pass++
	l.mu.Lock()
	l.state = awake
	l.mu.Unlock()
}

// leave ends a pass. It reports whether the current socket is to be closed by
// gnet, because it may not be closed inside its own callback.
func (l *Loop) leave() (end bool) {
	for round := 1; ; round++ {
		l.flush()
		l.closeAll()
		l.mu.Lock()
		busy := len(l.in) > 0 || len(l.dirty) > 0
		if !busy || round > maxRounds {
			if l.state = asleep; busy && !l.stopped {
				l.state = called
				l.ring()
			}
			l.mu.Unlock()
			break
		}
		l.in, l.batch = l.batch[:0], l.in
		l.mu.Unlock()
		for i, t := range l.batch {
			l.batch[i] = nil
			t.Run()
		}
		if cap(l.batch) > maxBatch {
			l.batch = nil // after a burst
		}
	}
	end = l.current != nil && l.current.closing
	l.inPass, l.current = false, nil
	return end
}

func (l *Loop) flush() {
	l.dirty, l.flushing = l.flushing[:0], l.dirty
	for i, s := range l.flushing {
		l.flushing[i] = nil
		s.dirty = false
		if !s.closing {
			s.stream.Flush()
		}
	}
}

// closeAll closes what was asked to, except the current socket.
func (l *Loop) closeAll() {
	for i := 0; i < len(l.closing); i++ { // Detached may add to it
		s := l.closing[i]
		l.closing[i] = nil
		if s != l.current && s.gc != nil {
			l.gate.closeConn(s.gc)
		}
	}
	l.closing = l.closing[:0]
}

// sweep looks at every connection's timeouts, once per tick.
func (l *Loop) sweep(now int64) {
	l.apportion()
	for s := l.sockets.head; s != nil; s = s.next {
		if sw, ok := s.stream.(interface{ sweep(now int64) }); ok && !s.closing {
			sw.sweep(now)
		}
	}
}

// stop closes every socket, with errStopped.
func (l *Loop) stop() {
	for s := l.sockets.head; s != nil; s = s.next {
		s.shut(errStopped)
	}
}

// Now is when this pass first asked, in nanoseconds of the engine's clock, which
// wall clocks cannot move and all its loops share. For the loop only.
func (l *Loop) Now() int64 {
	if l.clock == 0 {
		l.clock = l.engine.Now()
	}
	return l.clock
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// sweepTask is a Loop as the Task that sweeps it.
type sweepTask Loop

func (t *sweepTask) Run() { l := (*Loop)(t); l.sweep(l.Now()) }
