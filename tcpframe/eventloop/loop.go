package eventloop

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
	// ReadBuffer is the most octets of one read that are lent to a Stream. Of 16 KiB to 1 MiB, 64 KiB was best,
	// for small Calls and for bulk.
	ReadBuffer = 64 << 10
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
	// MaxIOV bounds the parts of one writev; the kernel takes 1024.
	MaxIOV = 512
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
	group  *Group // constant, as the next two
	index  int
	driver *driver // nil for a loop of NewOffline

	conns atomic.Int32 // sockets that are attached or being attached

	mu      sync.Mutex  // guards in, rung, awake and stopped; a leaf
	in      []loop.Task // the mailbox
	rung    bool        // the bell rings, and its pass has not begun
	awake   bool        // the loop is in a pass, which empties the mailbox before it ends
	stopped bool

	// Owned by the loop.
	clock     int64       // time of the pass
	pass      uint64      // number of the pass
	share     share       // of one socket in one pass
	left      int         // octets that Read may still move from the socket that is being read
	iov       []IOVec     // for one writev
	dirty     []*Socket   // sockets to flush at the end of the pass
	stale     []*Socket   // sockets to update at the end of the pass
	late      []*Socket   // sockets that have a turn in the next pass
	closing   []*Socket   // sockets to close at the end of the pass
	batch     []loop.Task // tasks taken from in; the two slices swap
	last      []loop.Task // tasks for the end of the pass
	flushing  []*Socket   // sockets taken from dirty; the two slices swap
	turns     []*Socket   // sockets taken from late; the two slices swap
	stuck     []*Socket   // sockets that are away and could not come back
	inPass    bool
	summons   bool    // gnet has a task that ends a pass
	called    bool    // the bell or that task ends the pass
	polls     bool    // the bell rings only because of Options.BusyPoll
	hurry     bool    // the pass has to end now
	served    int     // calls of gnet for sockets in this pass
	gather    int     // passes in which the loop waits for other sockets; negative: for so many it does not
	apart     int     // how many passes of those there are before it tries again
	current   *Socket // gnet's callback is running for it, and closes it afterwards
	yielded   int64   // when the loop last let other goroutines run, on the group's clock
	pollUntil int64   // when the loop stops polling, on the group's clock
	tally     Tally   // for tests
	moved     int     // octets read in this pass
	sweeps    uint64  // number of sweeps, from 1
	busy      int     // sockets that have received octets since the last sweep
	sockets   map[*Socket]struct{}
}

func newLoop(g *Group, index int) *Loop {
	return &Loop{
		group:   g,
		share:   few,
		iov:     make([]IOVec, 0, MaxIOV),
		index:   index,
		apart:   gatherAfter,
		sweeps:  1,
		sockets: make(map[*Socket]struct{}),
	}
}

// Index returns the loop's index in its group. It is safe for concurrent use.
func (l *Loop) Index() int { return l.index }

// Conns returns how many sockets the loop has, or is about to have. It is safe for concurrent use.
func (l *Loop) Conns() int { return int(l.conns.Load()) }

// Pass returns the number of the pass.
func (l *Loop) Pass() uint64 { return l.pass }

// A Tally is what a Loop counts for tests.
type Tally struct {
	Polled   uint64 // how often the loop has polled
	Gathered uint64 // passes that have ended with a task of gnet, for which gnet allocates twice
	Lent     uint64 // octets that OnTraffic has brought, or that were read inside it
}

// Tally returns what the loop has counted.
func (l *Loop) Tally() Tally { return l.tally }

// Hurry makes the pass end without waiting for more sockets.
func (l *Loop) Hurry() { l.hurry = true }

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
	return l.AttachSocket(c, NewSocket(l, c, s))
}

// NewSocket makes the socket of c, which is not attached yet.
func NewSocket(l *Loop, c net.Conn, s loop.Stream) *Socket {
	return &Socket{loop: l, stream: s, fd: -1, local: AddrPort(c.LocalAddr()), remote: AddrPort(c.RemoteAddr())}
}

// AttachSocket gives c to the loop and returns after s.stream.Attached. It closes c on failure.
func (l *Loop) AttachSocket(c net.Conn, s *Socket) error {
	if !l.group.attaching() {
		c.Close()
		return ErrClosed
	}
	defer l.group.attachments.Done()
	l.conns.Add(1)
	if err := l.driver.enroll(c, s); err != nil {
		l.conns.Add(-1)
		return &net.OpError{Op: "attach", Net: "tcp", Addr: c.RemoteAddr(), Err: err}
	}
	return nil
}

// opened begins, or goes on with, the life of s, whose gnet connection is c. It reports whether gnet must close c.
func (l *Loop) opened(s *Socket, c conn) (end bool) {
	l.enter(s)
	if s.returning {
		if !s.back(c) {
			c.SetContext(nil)
			end = true
		}
	} else {
		s.gc, s.fd = c, c.Fd()
		l.sockets[s] = struct{}{}
		s.stream.Attached(s)
	}
	l.exit()
	return end || s.closing
}

// traffic handles b, the octets of one read. It reports whether gnet must close its connection of s.
func (l *Loop) traffic(s *Socket, b []byte) (end bool) {
	l.enter(s)
	paused := s.paused
	l.heard(s)
	l.left = l.share.get
	s.stream.Received(b)
	n := len(b) + l.share.get - l.left
	l.left = 0
	l.moved += n
	l.tally.Lent += uint64(n)
	if paused && !s.closing {
		s.goAway()
	}
	l.exit()
	return s.closing || s.Away()
}

// closed follows the end of the gnet connection of s, whose descriptor is still open. What came before the end is
// handled in a pass before it.
func (l *Loop) closed(s *Socket, err error) {
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
func (l *Loop) detach(s *Socket) {
	s.gone = true
	s.unwatch()
	delete(l.sockets, s)
	l.conns.Add(-1)
	s.stream.Detached(s.end)
	if s.Away() {
		unix.Close(s.fd)
	}
	s.fd, s.gc = -1, nil
}

// enter begins a pass, unless the loop is in one. s is the socket for which gnet calls, or nil.
func (l *Loop) enter(s *Socket) {
	if l.current = s; l.inPass {
		return
	}
	l.inPass, l.clock = true, l.group.Now()
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
		if err := l.driver.execute(); err != nil {
			l.leave() // the loop is about to stop
			break
		}
		l.summons, l.called = true, true
		l.tally.Gathered++
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
	if busy := l.group.busyPoll; busy > 0 && !again {
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
		l.tally.Polled++
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
		case s.Away():
			l.detach(s)
		case s != l.current:
			l.driver.close(s.gc)
		}
	}
	l.closing = l.closing[:0]
}

// bringBack gives a duplicate of the socket's descriptor to the loop. Without descriptors the next sweep tries again.
func (l *Loop) bringBack(s *Socket) {
	if !l.group.attaching() {
		return
	}
	s.returning = true
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		l.group.attachments.Done()
		l.stuck = append(l.stuck, s)
		return
	}
	go func() {
		defer l.group.attachments.Done()
		c, err := fileConn(fd)
		switch {
		case err != nil:
		case c.RemoteAddr() == nil:
			c.Close() // it was reset, which the watcher sees, too; gnet would ask for the address
			return
		default:
			err = l.driver.enroll(c, s)
		}
		if err != nil {
			l.Post(loop.TaskFunc(func() { l.stuck = append(l.stuck, s) }))
		}
	}()
}

// Sweep is called once per tick. It decides how much the sockets of the loop may move in one pass, and lets sockets come
// back that found no descriptor.
func (l *Loop) Sweep() {
	if l.busy <= crowded { // since the last sweep
		l.share = few
	}
	l.sweeps++
	l.busy = 0
	for _, s := range l.stuck {
		s.returning = false
		s.updateSoon()
	}
	l.stuck = nil
}

// update follows the changes of this pass.
func (l *Loop) update() {
	for i := 0; i < len(l.stale); i++ {
		s := l.stale[i]
		l.stale[i] = nil
		s.stale = false
		if s.closing {
			continue
		}
		if s.Away() && !s.paused && !s.returning {
			l.bringBack(s)
		}
		if s.Away() || s.full {
			l.watch(s)
		}
	}
	l.stale = l.stale[:0]
}

// watch has the watcher watch s, unless it does.
func (l *Loop) watch(s *Socket) {
	if s.watch != nil {
		return
	}
	var err error
	if s.watch, err = l.group.watcher.add(s); err != nil {
		s.shut(err)
	}
}

// stop closes every socket with loop.ErrStopped.
func (l *Loop) stop() {
	for s := range l.sockets {
		s.shut(loop.ErrStopped)
	}
}

// Now returns the result that Group.Now had when this pass began. It must be called on the loop.
func (l *Loop) Now() int64 { return l.clock }

// AddrPort converts a. It returns the zero AddrPort if a is not a TCP address.
func AddrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// heard counts s among the sockets that have received octets since the last sweep.
func (l *Loop) heard(s *Socket) {
	if s.heard == l.sweeps {
		return
	}
	s.heard = l.sweeps
	if l.busy++; l.busy > crowded {
		l.share = many
	}
}
