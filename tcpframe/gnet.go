package tcpframe

// This is the only file that imports gnet. It adds two abilities to gnet's event loops.
//
// # Pausing
//
// gnet cannot stop reading from a connection, but epoll can. To find a loop's epoll
// instance, newGate gives the loop a connection and asks every low descriptor number to
// modify the registration of that connection, which only the right instance can do. From
// then on EPOLL_CTL_MOD on gnet's own registration pauses a connection, on the loop. gnet
// re-arms EPOLLIN only when its own outbound buffer changes, and this package never writes
// through gnet.
//
// # Waking
//
// gnet's Execute allocates. It also runs tasks until none is left before gnet looks at sockets
// again, so that a task that posts itself would starve every connection. Instead each loop has
// a gate: a gnet connection whose descriptor is replaced (dup3) by a semaphore eventfd that can
// be read for ever. Two descriptors are then added to the loop's epoll instance under the
// number of the gate: an edge-triggered eventfd that Post writes, and a nested epoll instance
// that watches for EPOLLOUT, and for EPOLLIN where AwaitInput asks for it. When either is ready,
// gnet reads eight octets from the gate and calls OnTraffic, which runs a pass. No work changes
// threads, nothing is allocated, and the loop alternates between posts and sockets.
//
// # Trust
//
// Both rely on gnet's default Linux build: it is level-triggered, epoll data hold the
// descriptor number, and gnet looks connections up by it. Start tests each of these properties
// on each loop before anything else happens, and returns an error if one does not hold. With
// gnet's build tag poll_opt none holds, and Start returns that error.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// readBuffer is the most octets of one read. Of 16 KiB to 1 MiB, 64 KiB was best, for
// small Calls and for bulk.
const readBuffer = 64 << 10

const (
	selfTest = 5 * time.Second      // how long a self test waits for an event that must happen
	quiet    = 2 * time.Millisecond // how long a self test waits for an event that must not
)

// unsupported says why this build cannot work; it is nil if it can.
var unsupported error

type gnetConn = gnet.Conn

// A driver is a gnet client, which has event loops and no listener.
type driver struct {
	client *gnet.Client
}

// A gate wakes a loop from other goroutines: see the comment at the top of the file.
type gate struct {
	loop *Loop // set by open, on the loop

	opened  chan struct{} // tells the self test that OnOpen was called
	traffic chan struct{} // tells the self test that OnTraffic was called

	el   gnet.EventLoop
	fd   int // descriptor of the gnet connection; convert makes it a semaphore eventfd
	epfd int // gnet's epoll instance
	wake int // eventfd that Post writes
	out  int // nested epoll instance
}

// startDriver starts gnet with the given number of loops.
func startDriver(loops int, log zerolog.Logger) (*driver, error) {
	if unsupported != nil {
		return nil, unsupported
	}
	c, err := gnet.NewClient(&handler{},
		gnet.WithNumEventLoop(loops),
		gnet.WithReadBufferCap(readBuffer),
		gnet.WithLogger(&gnetLog{log: log}),
	)
	if err != nil {
		return nil, fmt.Errorf("tcpframe: gnet client: %w", err)
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("tcpframe: start gnet client: %w", err)
	}
	return &driver{client: c}, nil
}

// stop ends the loops. Their connections must have been closed.
func (d *driver) stop() error { return d.client.Stop() }

// newGate opens the gate of the loop that has the fewest connections. As long as gates are
// the only connections, that is another loop each time.
func (d *driver) newGate() (g *gate, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	far := pair[0]
	defer unix.Close(far)
	f := os.NewFile(uintptr(pair[1]), "gate")
	near, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	g = &gate{opened: make(chan struct{}, 1), traffic: make(chan struct{}, 16), epfd: -1, wake: -1, out: -1}
	c, err := d.client.EnrollContext(near, g)
	if err != nil {
		return nil, fmt.Errorf("enroll: %w", err)
	}
	if !g.await(g.opened) {
		return nil, errors.New("gnet did not open a connection")
	}
	g.el, g.fd = c.EventLoop(), c.Fd()
	if err := g.findPoller(); err != nil {
		return nil, err
	}
	if err := g.testPause(far); err != nil {
		return nil, err
	}
	if err := g.convert(); err != nil {
		g.release()
		return nil, err
	}
	if err := g.testConverted(); err != nil {
		g.release()
		return nil, err
	}
	return g, nil
}

const (
	readEvents = unix.EPOLLIN | unix.EPOLLPRI // the events that gnet registers
	maxProbe   = 1 << 16                      // descriptors tried for the epoll instance
)

// findPoller finds gnet's epoll instance.
func (g *gate) findPoller() error {
	for fd := range maxProbe {
		if g.fd != fd && g.ctl(fd, unix.EPOLL_CTL_MOD, g.fd, readEvents) == nil {
			g.epfd = fd
			return nil
		}
	}
	return errors.New("epoll instance of the event loop not found")
}

// ctl calls epoll_ctl with the number of the gate as the data of the event.
func (g *gate) ctl(epfd, op, fd int, events uint32) error {
	return unix.EpollCtl(epfd, op, fd, &unix.EpollEvent{Events: events, Fd: int32(g.fd)})
}

// testPause tests that events can be removed from gnet's registration and added again. It
// leaves the gate paused.
func (g *gate) testPause(far int) error {
	poke := func() error {
		_, err := unix.Write(far, []byte{0})
		return os.NewSyscallError("write", err)
	}
	if err := poke(); err != nil {
		return err
	}
	if !g.await(g.traffic) {
		return errors.New("self test: nothing received before pausing")
	}
	if err := g.ctl(g.epfd, unix.EPOLL_CTL_MOD, g.fd, 0); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if err := poke(); err != nil {
		return err
	}
	select {
	case <-g.traffic:
		return errors.New("self test: received while paused")
	case <-time.After(quiet):
	}
	if err := g.ctl(g.epfd, unix.EPOLL_CTL_MOD, g.fd, readEvents); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if !g.await(g.traffic) {
		return errors.New("self test: nothing received after resuming")
	}
	return os.NewSyscallError("epoll_ctl", g.ctl(g.epfd, unix.EPOLL_CTL_MOD, g.fd, 0))
}

// convert turns the paused connection into the gate.
func (g *gate) convert() error {
	sem, err := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	defer unix.Close(sem)
	// Each read takes one: 2^62 reads last for ever.
	if _, err := unix.Write(sem, eventfdValue(1<<62)); err != nil {
		return os.NewSyscallError("write", err)
	}
	if err := unix.Dup3(sem, g.fd, unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("dup3", err)
	}
	// dup3 closed the socket, and its registration is gone. gnet expects to delete one.
	if err := g.ctl(g.epfd, unix.EPOLL_CTL_ADD, g.fd, 0); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if g.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if err := g.ctl(g.epfd, unix.EPOLL_CTL_ADD, g.wake, unix.EPOLLIN|unix.EPOLLET); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if g.out, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	return os.NewSyscallError("epoll_ctl", g.ctl(g.epfd, unix.EPOLL_CTL_ADD, g.out, unix.EPOLLIN))
}

// testConverted tests that the gate opens for both of its descriptors, and only for them.
func (g *gate) testConverted() error {
	select {
	case <-g.traffic:
		return errors.New("self test: the gate opened without an event")
	case <-time.After(quiet):
	}
	for range 2 { // the second round tests that an edge is reported without a read between
		if err := g.ring(); err != nil {
			return err
		}
		if !g.await(g.traffic) {
			return errors.New("self test: the loop did not wake")
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	ev := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(pair[0])}
	if err := unix.EpollCtl(g.out, unix.EPOLL_CTL_ADD, pair[0], &ev); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if !g.await(g.traffic) {
		return errors.New("self test: the loop did not see a writable socket")
	}
	evs := make([]unix.EpollEvent, 1)
	if n, err := unix.EpollWait(g.out, evs, 0); n != 1 || err != nil || evs[0].Fd != ev.Fd {
		return fmt.Errorf("self test: writable socket: %d events, %w", n, err)
	}
	return nil
}

// open makes the gate run passes of l.
func (g *gate) open(l *Loop) error {
	err := g.el.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
		g.loop = l
		g.opened <- struct{}{}
		return nil
	}))
	if err != nil {
		return err
	}
	if !g.await(g.opened) {
		return errors.New("the loop does not run")
	}
	return nil
}

var ringValue = eventfdValue(1)

func eventfdValue(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// ring wakes the loop. Any goroutine, until the gate is released.
func (g *gate) ring() error {
	_, err := unix.Write(g.wake, ringValue)
	return os.NewSyscallError("write", err)
}

// release closes the descriptors that gnet does not know.
func (g *gate) release() {
	for _, fd := range []int{g.wake, g.out} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// await waits for an event of the self test and reports whether it came in time.
func (*gate) await(c <-chan struct{}) bool {
	t := time.NewTimer(selfTest)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// enroll gives the socket of c to the loop and returns after OnOpen was called for s. It
// closes c. The loop must not stop before enroll has returned.
func (g *gate) enroll(c net.Conn, s *socket) error {
	results, err := g.el.Enroll(gnet.NewContext(context.Background(), s), c)
	if err != nil {
		c.Close()
		return err
	}
	if r := <-results; r.Err != nil {
		c.Close()
		return r.Err
	}
	if !s.opened {
		// epoll did not accept the socket. gnet has closed it and returns no error.
		return errors.New("event loop did not take the socket")
	}
	return nil
}

// closeConn closes c, which must not be the connection whose callback is running. OnClose is
// called before closeConn returns.
func (g *gate) closeConn(c gnetConn) { _ = g.el.Close(c) }

// A handler has the callbacks of gnet.
type handler struct{ gnet.BuiltinEventEngine }

func (*handler) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	switch x := c.Context().(type) {
	case *socket:
		x.gc, x.fd, x.opened = c, c.Fd(), true
		if x.loop.attached(x) {
			return nil, gnet.Close
		}
	case *gate:
		x.opened <- struct{}{}
	}
	return nil, gnet.None
}

func (*handler) OnTraffic(c gnet.Conn) gnet.Action {
	// Consume everything, always: gnet copies and buffers the rest without limit.
	b, _ := c.Next(-1)
	switch x := c.Context().(type) {
	case *socket:
		if x.loop.received(x, b) {
			return gnet.Close
		}
	case *gate:
		if x.loop != nil {
			x.loop.rung()
			break
		}
		select {
		case x.traffic <- struct{}{}:
		default:
		}
	}
	return gnet.None
}

func (*handler) OnClose(c gnet.Conn, err error) gnet.Action {
	s, ok := c.Context().(*socket)
	if !ok {
		return gnet.None
	}
	var call *os.SyscallError
	switch {
	case errors.As(err, &call):
		err = call.Err // EOF or an errno of read(2)
	case err != nil:
		// EPOLLHUP or EPOLLERR without a read: SO_ERROR tells which error it is.
		err = io.EOF
		if n, e := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); e == nil && n != 0 {
			err = unix.Errno(n)
		}
	}
	s.loop.ended(s, err)
	return gnet.None
}

// gnetLog passes gnet's messages on. gnet warns of events that were on their way when a
// connection was closed, which is normal.
type gnetLog struct {
	log    zerolog.Logger
	errors loglimit.Limit
}

func (l *gnetLog) Debugf(f string, a ...any) { l.log.Trace().Msgf("gnet: "+f, a...) }
func (l *gnetLog) Infof(f string, a ...any)  { l.log.Trace().Msgf("gnet: "+f, a...) }
func (l *gnetLog) Warnf(f string, a ...any) {
	l.log.Debug().Str("event", "loops").Msgf("gnet: "+f, a...)
}

func (l *gnetLog) Errorf(f string, a ...any) {
	l.errors.Line(&l.log, zerolog.ErrorLevel, "loops_failed").Msgf("gnet: "+f, a...)
}

func (l *gnetLog) Fatalf(f string, a ...any) {
	l.errors.Line(&l.log, zerolog.ErrorLevel, "loops_failed").Msgf("gnet: "+f, a...)
}
