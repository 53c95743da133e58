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
	// maxRounds bounds the rounds in which the end of a pass runs tasks that earlier rounds
	// have posted. Tasks that remain wait until the loop has served its sockets.
	maxRounds = 4
	// maxBatch is the largest capacity that a mailbox keeps for the next batch.
	maxBatch = 8192
	// maxIOV bounds the parts of one writev; the kernel takes 1024.
	maxIOV = 512
	// linearOctets bounds the octets of short parts that are joined for one writev.
	linearOctets = 32 << 10
)

// A Loop is an event loop: one goroutine that owns connections. It implements
// loop.SocketLoop.
type Loop struct {
	engine *Engine
	index  int
	gate   *gate

	conns atomic.Int32 // sockets that are attached or being attached

	mu      sync.Mutex  // guards in, state and stopped; a leaf
	in      []loop.Task // the mailbox
	state   wakeState
	stopped bool

	// Owned by the loop.
	batch     []loop.Task // tasks taken from in; the two slices swap
	last      []loop.Task // tasks for the end of the pass
	dirty     []*socket   // sockets to flush at the end of the pass
	stale     []*socket   // sockets whose registration with the poll may have to change at the end of the pass
	flushing  []*socket   // sockets taken from dirty; the two slices swap
	late      []*socket   // sockets to flush at the end of the next pass
	closing   []*socket   // sockets to close at the end of the pass
	inPass    bool
	pass      uint64  // number of the pass
	current   *socket // gnet is opening it, and closes it if attached says so
	clock     int64   // result of Now in this pass
	slept     uint64  // how often the loop has slept, for tests
	yielded   int64   // when the loop last let other goroutines run, on the engine's clock
	left      int     // octets that Socket.Read may still move from the socket that is being read
	moved     int     // octets read in this pass
	share     share
	sweeps    uint64 // number of sweeps, from 1
	busy      int    // sockets that have received octets since the last sweep
	sockets   socketList
	timed     []*Conn           // the connections that sweep looks at
	slots     []*socket         // the sockets that are registered with the poll, by their epoll data; nil for none
	vacant    []int32           // indexes of slots that are nil
	input     []byte            // octets of one read
	iov       []iovec           // for one writev
	linear    []byte            // short parts that gather joins, for one writev
	events    []unix.EpollEvent // for one EpollWait
	free      *outRecord        // spare nodes of output queues
	freeLen   int               // length of free
	blocks    []*sendBlock      // spare blocks of SendCopy
	blocksOut int               // blocks in use
	holds     [][]byte          // spare buffers of held input
	wire      []byte            // octets of TLS records, during one open
	scrap     []byte            // octets of TLS records that are dropped
	spareOuts [][]byte          // spare buffers of TLS records
	outs      int               // buffers of TLS records in use
}

// A wakeState says whether Post has to wake the loop.
type wakeState uint8

const (
	asleep wakeState = iota // the loop is in epoll_wait or about to enter it: Post rings
	called                  // a ring is on its way, and its pass has not begun
	awake                   // the loop is in a pass, which empties the mailbox before it ends
)

func newLoop(e *Engine, index int, g *gate) *Loop {
	return &Loop{
		engine: e,
		index:  index,
		gate:   g,
		share:  few,
		sweeps: 1,
		input:  make([]byte, readBuffer),
		iov:    make([]iovec, 0, maxIOV),
		linear: make([]byte, 0, linearOctets),
		events: make([]unix.EpollEvent, readyBatch),
	}
}

// Index returns the loop's index in Engine.Loops. It is safe for concurrent use.
func (l *Loop) Index() int { return l.index }

// Post queues t to run on the loop's goroutine. It is safe for concurrent use, never blocks,
// does not allocate, and keeps the order of each goroutine's posts. Many posts cost one
// wake-up, and posts from the loop itself cost none. The loop serves its sockets even while a
// task posts itself again and again. After the loop has stopped, Post drops t.
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

// Finish queues t to run at the end of the present pass, after all that the pass received and
// before the sockets are flushed. It must be called on the loop.
func (l *Loop) Finish(t loop.Task) {
	if !l.inPass {
		l.Post(t)
		return
	}
	l.last = append(l.last, t)
}

// ring wakes the loop. The caller holds mu or runs on the loop, because either keeps the gate's
// descriptor open.
func (l *Loop) ring() {
	if err := l.gate.ring(); err != nil && !errors.Is(err, unix.EAGAIN) {
		panic("BUG: tcpframe: wake: " + err.Error())
	}
}

// Attach implements loop.SocketLoop. c may also be a connected Unix socket. Attach waits
// for the loop.
func (l *Loop) Attach(c net.Conn, s loop.Stream) error {
	return l.attach(c, newSocket(l, c, s))
}

// attach gives c to gnet and returns after s.stream.Attached. It closes c on failure.
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

// attached runs the first pass of s. It reports whether gnet must close s at once.
func (l *Loop) attached(s *socket) (end bool) {
	l.enter(s)
	l.sockets.push(s)
	s.stream.Attached(s)
	return l.leave()
}

// ended detaches s, whose descriptor is still open. It runs inside the pass that closes s, or else as a pass of its
// own.
func (l *Loop) ended(s *socket) {
	outer := l.inPass
	if !outer {
		l.enter(s)
	}
	err := s.end
	if !s.closing { // gnet itself stops
		err = loop.ErrStopped
	}
	s.closing, s.gone = true, true
	l.unwatch(s)
	l.sockets.remove(s)
	l.conns.Add(-1)
	s.stream.Detached(err)
	s.fd, s.gc = -1, nil
	if !outer {
		l.leave()
	}
}

// enter begins a pass. s is the socket that gnet opens or closes, or nil.
func (l *Loop) enter(s *socket) {
	l.inPass, l.current, l.clock = true, s, l.engine.Now()
	l.pass++
	l.moved = 0
	l.mu.Lock()
	l.state = awake
	l.mu.Unlock()
}

// leave ends a pass. It reports whether gnet must close the current socket, which cannot
// be closed inside its own callback.
func (l *Loop) leave() (end bool) {
	for round := 1; ; round++ {
		l.finish()
		l.flush()
		l.rewatch()
		l.closeAll()
		l.mu.Lock()
		busy := len(l.in) > 0 || len(l.dirty) > 0 || len(l.last) > 0
		if !busy || round > maxRounds {
			// run looks after the late sockets of its own passes, and not after those of gnet's.
			again := busy || l.current != nil && len(l.late) > 0
			if l.state = asleep; again && !l.stopped {
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
			l.batch = nil // a burst made it long
		}
	}
	end = l.current != nil && l.current.closing
	l.inPass, l.current = false, nil
	return end
}

// finish runs the tasks that Finish has queued.
func (l *Loop) finish() {
	for i := 0; i < len(l.last); i++ { // a task may queue others
		t := l.last[i]
		l.last[i] = nil
		t.Run()
	}
	l.last = l.last[:0]
}

// flush calls Flush for the sockets that FlushSoon has queued.
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

// closeAll closes the sockets that shut has queued, except the current one.
func (l *Loop) closeAll() {
	for i := 0; i < len(l.closing); i++ { // Detached may append to l.closing
		s := l.closing[i]
		l.closing[i] = nil
		if s != l.current && s.gc != nil {
			l.gate.closeConn(s.gc)
		}
	}
	l.closing = l.closing[:0]
}

// sweep checks the timeouts of the connections that have any, once per tick.
func (l *Loop) sweep(now int64) {
	l.apportion()
	kept := l.timed[:0]
	for _, c := range l.timed {
		if c.timed = !c.sock.closing && c.sweep(now); c.timed {
			kept = append(kept, c)
		}
	}
	clear(l.timed[len(kept):])
	if cap(l.timed) > maxBatch && len(kept) < maxBatch/4 {
		kept = append(make([]*Conn, 0, maxBatch/2), kept...) // a burst made it long
	}
	l.timed = kept
}

// stop closes every socket with loop.ErrStopped.
func (l *Loop) stop() {
	for s := l.sockets.head; s != nil; s = s.next {
		s.shut(loop.ErrStopped)
	}
}

// Now returns the result that Engine.Now had when this pass began. It must be called on the loop.
func (l *Loop) Now() int64 { return l.clock }

// addrPort converts a. It returns the zero AddrPort if a is not a TCP address.
func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// A sweepTask is a Loop as the Task that sweeps the loop's connections.
type sweepTask Loop

func (t *sweepTask) Run() { l := (*Loop)(t); l.sweep(l.Now()) }
