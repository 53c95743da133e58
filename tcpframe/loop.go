package tcpframe

import (
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

const (
	// readBuffer is the most octets of one read that are lent to a Stream. Of 16 KiB to 1 MiB, 64 KiB was best,
	// for small Calls and for bulk.
	readBuffer = 64 << 10
	// passOctets is how many octets one pass reads. The Calls that they are, of however many clients, go to the
	// upstreams in one write each.
	passOctets = 64 << 10
	// gatherFor is for how many passes of one socket each a loop goes on to wait for others, after a pass that
	// had several. After that it tries so after gatherAfter passes, and after twice as many when that was in
	// vain, up to gatherSeldom. It does neither while no more than gatherMore sockets are busy: those of a client and
	// of its upstream are hardly ever ready together.
	gatherFor    = 16
	gatherAfter  = 4
	gatherSeldom = 64
	gatherMore   = 2
	// maxRounds bounds the rounds in which the end of a pass runs tasks that earlier rounds
	// have posted. Tasks that remain wait until the loop has served its sockets.
	maxRounds = 4
	// maxBatch is the largest capacity that a mailbox keeps for the next batch.
	maxBatch = 8192
	// maxIOV bounds the parts of one writev; the kernel takes 1024.
	maxIOV = 512
	// linearOctets bounds the octets of short parts that are joined for one writev.
	linearOctets = 32 << 10
	// yieldEvery is how often a loop lets Go's scheduler run other goroutines, at least if it has something to do.
	// After 10 ms without that, the runtime would interrupt it with a signal, take its processor away in each system
	// call, and look for such loops 50,000 times a second.
	yieldEvery = int64(5 * time.Millisecond)
)

// A Loop is an event loop: one goroutine, gnet's, that owns connections. It implements
// loop.SocketLoop.
//
// # Passes
//
// A pass begins when gnet calls, and ends with flushing the sockets for which that was asked. A lone Call must not wait,
// and the Calls of many clients are to be written together, but gnet does not say whether more sockets are ready. So a
// pass that one socket has begun ends at once, unless a pass before had several sockets: then the pass ends with a task of
// gnet, which runs after the sockets that are ready. Now and then the loop tries that.
type Loop struct {
	engine *Engine
	index  int
	driver driver

	conns atomic.Int32 // sockets that are attached or being attached

	mu      sync.Mutex  // guards in, rung, awake and stopped; a leaf
	in      []loop.Task // the mailbox
	rung    bool        // the bell rings, and its pass has not begun
	awake   bool        // the loop is in a pass, which empties the mailbox before it ends
	stopped bool

	// Owned by the loop.
	batch     []loop.Task // tasks taken from in; the two slices swap
	last      []loop.Task // tasks for the end of the pass
	dirty     []*socket   // sockets to flush at the end of the pass
	stale     []*socket   // sockets to update at the end of the pass
	flushing  []*socket   // sockets taken from dirty; the two slices swap
	late      []*socket   // sockets that have a turn in the next pass
	turns     []*socket   // sockets taken from late; the two slices swap
	closing   []*socket   // sockets to close at the end of the pass
	stuck     []*socket   // sockets that are away and could not come back
	inPass    bool
	summons   bool    // gnet has a task that ends a pass
	called    bool    // the bell or that task ends the pass
	polls     bool    // the bell rings only because of EngineOptions.BusyPoll
	hurry     bool    // the pass has to end now
	pass      uint64  // number of the pass
	served    int     // calls of gnet for sockets in this pass
	gather    int     // passes in which the loop waits for other sockets; negative: for so many it does not
	apart     int     // how many passes of those there are before it tries again
	current   *socket // gnet's callback is running for it, and closes it afterwards
	clock     int64   // result of Now in this pass
	yielded   int64   // when the loop last let other goroutines run, on the engine's clock
	pollUntil int64   // when the loop stops polling, on the engine's clock
	polled    uint64  // how often the loop has polled, for tests
	lent      uint64  // octets that OnTraffic has brought or that were read inside it, for tests
	left      int     // octets that Socket.Read may still move from the socket that is being read
	moved     int     // octets read in this pass
	share     share
	sweeps    uint64 // number of sweeps, from 1
	busy      int    // sockets that have received octets since the last sweep
	sockets   socketList
	timed     []*Conn      // the connections that sweep looks at
	iov       []iovec      // for one writev
	linear    []byte       // short parts that gather joins, for one writev
	free      *outRecord   // spare nodes of output queues
	freeLen   int          // length of free
	blocks    []*sendBlock // spare blocks of SendCopy
	blocksOut int          // blocks in use
	holds     [][]byte     // spare buffers of held input
	wire      []byte       // octets of TLS records, during one open
	scrap     []byte       // octets of TLS records that are dropped
	spareOuts [][]byte     // spare buffers of TLS records
	outs      int          // buffers of TLS records in use
}

func newLoop(e *Engine, index int) *Loop {
	return &Loop{
		engine: e,
		index:  index,
		share:  few,
		apart:  gatherAfter,
		sweeps: 1,
		iov:    make([]iovec, 0, maxIOV),
		linear: make([]byte, 0, linearOctets),
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
		if !l.awake {
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

// ring rings the bell unless it rings. The caller holds mu.
func (l *Loop) ring() {
	if l.rung {
		return
	}
	l.rung = true
	if err := l.driver.ring(); err != nil {
		panic("BUG: tcpframe: wake: " + err.Error())
	}
}

// rings runs the pass of the bell, or ends the one that waits for it.
func (l *Loop) rings() {
	l.mu.Lock()
	l.rung = false
	l.mu.Unlock()
	l.polls = false
	l.enter(nil)
	l.leave()
}

// summoned ends the pass that has waited for it. If that pass has ended, another one does no harm.
func (l *Loop) summoned() {
	l.summons = false
	l.enter(nil)
	l.leave()
}

// Attach implements loop.SocketLoop. c may also be a connected Unix socket. Attach waits
// for the loop.
func (l *Loop) Attach(c net.Conn, s loop.Stream) error {
	return l.attach(c, newSocket(l, c, s))
}

// attach gives c to the loop and returns after s.stream.Attached. It closes c on failure.
func (l *Loop) attach(c net.Conn, s *socket) error {
	if !l.engine.attaching() {
		c.Close()
		return errClosed
	}
	defer l.engine.attachments.Done()
	l.conns.Add(1)
	if err := l.driver.enroll(c, s); err != nil {
		l.conns.Add(-1)
		return &net.OpError{Op: "attach", Net: "tcp", Addr: c.RemoteAddr(), Err: err}
	}
	return nil
}

// opened begins, or goes on with, the life of s, whose gnet connection is c. It reports whether gnet must close c.
func (l *Loop) opened(s *socket, c gnetConn) (end bool) {
	l.enter(s)
	if s.returning {
		if !s.back(c) {
			c.SetContext(nil)
			end = true
		}
	} else {
		s.gc, s.fd = c, c.Fd()
		l.sockets.push(s)
		s.stream.Attached(s)
	}
	l.exit()
	return end || s.closing
}

// traffic handles b, the octets of one read. It reports whether gnet must close its connection of s.
func (s *socket) traffic(b []byte) (end bool) {
	l := s.loop
	l.enter(s)
	paused := s.paused
	l.heard(s)
	l.left = l.share.get
	s.stream.Received(b)
	n := len(b) + l.share.get - l.left
	l.left = 0
	l.moved += n
	l.lent += uint64(n)
	if paused && !s.closing {
		s.goAway()
	}
	l.exit()
	return s.closing || s.away()
}

// closed follows the end of the gnet connection of s, whose descriptor is still open. What came before the end is
// handled in a pass before it.
func (l *Loop) closed(s *socket, err error) {
	if l.inPass && !s.closing {
		l.current = s
		l.leave()
	}
	nested := l.inPass // leave closes s
	if !nested {
		l.enter(s)
	}
	if err != io.EOF || !s.paused || s.closing || !s.goAway() {
		if !s.closing {
			s.closing, s.end = true, err
		}
		l.detach(s)
	}
	if !nested {
		l.leave()
	}
}

// detach ends s.
func (l *Loop) detach(s *socket) {
	s.gone = true
	l.engine.watcher.forget(s)
	l.sockets.remove(s)
	l.conns.Add(-1)
	s.stream.Detached(s.end)
	if s.away() {
		unix.Close(s.fd)
	}
	s.fd, s.gc = -1, nil
}

// enter begins a pass, unless the loop is in one. s is the socket for which gnet calls, or nil.
func (l *Loop) enter(s *socket) {
	if l.current = s; l.inPass {
		return
	}
	l.inPass, l.clock = true, l.engine.Now()
	l.pass++
	l.moved, l.served, l.hurry = 0, 0, false
	l.mu.Lock()
	l.awake = true
	l.called = l.summons || l.rung && !l.polls
	l.mu.Unlock()
	l.late, l.turns = l.turns[:0], l.late
	for i, x := range l.turns {
		l.turns[i] = nil
		x.late = false
		if x.more && !x.closing {
			x.more = false
			x.stream.Writable()
		}
		x.FlushSoon()
	}
}

// exit follows a call of gnet for a socket. It ends the pass, or leaves that to summoned or to the bell.
func (l *Loop) exit() {
	l.served++
	switch now := l.hurry || l.moved >= passOctets || len(l.closing) > 0; {
	case now:
		// The sockets after one that has ended are served in the next pass, when its handler knows of the end.
		l.leave()
	case l.called:
	case l.busy > gatherMore && l.gather >= 0:
		if err := l.driver.execute(l); err != nil {
			l.leave() // the loop is about to stop
			break
		}
		l.summons, l.called = true, true
	default:
		l.leave()
	}
	l.current = nil
}

// leave ends the pass.
func (l *Loop) leave() {
	for round := 1; ; round++ {
		l.finish()
		l.flush()
		l.update()
		l.closeAll()
		l.mu.Lock()
		busy := len(l.in) > 0 || len(l.dirty) > 0 || len(l.last) > 0
		if !busy || round > maxRounds {
			l.rest(busy || len(l.late) > 0)
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
	switch {
	case l.served > 1:
		l.gather, l.apart = gatherFor, gatherAfter
	case l.served == 0 || l.busy <= gatherMore:
	case l.gather > 0:
		l.gather--
	case l.gather < 0:
		l.gather++
	default:
		l.gather = -l.apart
		l.apart = min(2*l.apart, gatherSeldom)
	}
	if l.clock-l.yielded >= yieldEvery {
		l.yielded = l.clock
		runtime.Gosched()
	}
}

// rest ends the pass and, if again is set, makes another one follow. The caller holds mu.
func (l *Loop) rest(again bool) {
	l.inPass, l.awake = false, false
	poll := false
	if busy := l.engine.busyPoll; busy > 0 && !again {
		if l.served > 0 {
			l.pollUntil = l.clock + busy
		}
		poll = l.clock < l.pollUntil
	}
	if l.stopped || !again && !poll {
		return
	}
	l.polls = poll && (l.polls || !l.rung)
	if poll {
		l.polled++
	}
	l.ring()
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
		switch {
		case s.gone:
		case s.away():
			l.detach(s)
		case s != l.current:
			closeConn(s.gc)
		}
	}
	l.closing = l.closing[:0]
}

// sweep checks the timeouts of the connections that have any, once per tick.
func (l *Loop) sweep(now int64) {
	l.apportion()
	l.retry()
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
