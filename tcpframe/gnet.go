package tcpframe

// This is the only file that imports gnet. gnet starts the goroutines of the loops and owns their connections: it
// takes a connection, and closes it. While it has nothing to do, a loop waits for its sockets and reads from them
// itself, in poll.go.
//
// # Why
//
// gnet reads what has come into a buffer of its own before it asks where the octets belong, cannot stop reading
// from a connection, and hands each connection over by itself, so that Calls of several clients that are ready
// together are not sent together. Before it sleeps it yields to Go's scheduler, which wakes a second thread each time.
//
// # How
//
// Each loop has an epoll instance of its own, the poll, and a gate: a gnet connection whose descriptor is replaced
// (dup3) by a semaphore eventfd that can be read for ever. The poll is a member of gnet's epoll instance, under the
// number of the gate. When something happens in the poll, gnet reads eight octets from the gate and calls OnTraffic,
// which runs Loop.run. That returns only when gnet is needed: enroll says so before it asks gnet for anything. While
// connections are being enrolled, gnet and the loop take turns.
//
// A connection that gnet has opened is moved from gnet's epoll instance to the poll. To find gnet's instance, newGate
// gives the loop a connection and asks every low descriptor number to modify the registration of that connection,
// which only the right instance can do.
//
// # Trust
//
// This relies on gnet's default Linux build: it is level-triggered, epoll data hold the descriptor number, gnet looks
// connections up by it, and reads nothing from a connection that is not registered. Start tests each of these
// properties on each loop before anything else happens, and returns an error if one does not hold. With gnet's build
// tag poll_opt none holds, and Start returns that error.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

const (
	selfTest = 30 * time.Second     // how long a self test waits for an event that must happen
	quiet    = 2 * time.Millisecond // how long a self test waits for an event that must not
)

// unsupported says why this build cannot work; it is nil if it can.
var unsupported error

type gnetConn = gnet.Conn

// A driver is a gnet client, which has event loops and no listener.
type driver struct {
	client *gnet.Client
}

// A gate is how gnet calls a loop, and how other goroutines wake it: see the comment at the top of the file.
type gate struct {
	loop *Loop // set by open, on the loop

	opened  chan struct{} // tells the self test that OnOpen was called
	traffic chan int32    // tells the self test that OnTraffic was called, with the epoll data of the event in the poll

	el     gnet.EventLoop
	fd     int          // descriptor of the gnet connection; convert makes it a semaphore eventfd
	epfd   int          // gnet's epoll instance
	poll   int          // the loop's epoll instance
	wake   int          // eventfd that ring writes, a member of the poll
	needed atomic.Int32 // callers that need gnet
}

// wakeData are the epoll data of gate.wake, and noData stands for no event.
const (
	wakeData = -1
	noData   = -2
)

// startDriver starts gnet with the given number of loops.
func startDriver(loops int, log zerolog.Logger) (*driver, error) {
	if unsupported != nil {
		return nil, unsupported
	}
	c, err := gnet.NewClient(&handler{},
		gnet.WithNumEventLoop(loops),
		gnet.WithReadBufferCap(1<<10), // only gates are read into it
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

// stop ends the loops. Their connections must have been closed, and their gates yield.
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
	g = &gate{opened: make(chan struct{}, 1), traffic: make(chan int32, 16), epfd: -1, poll: -1, wake: -1}
	c, err := d.client.EnrollContext(near, g)
	if err != nil {
		return nil, fmt.Errorf("enroll: %w", err)
	}
	if _, ok := await(g.opened); !ok {
		return nil, errors.New("gnet did not open a connection")
	}
	g.el, g.fd = c.EventLoop(), c.Fd()
	if err := g.findPoller(); err != nil {
		return nil, err
	}
	if err := g.testRemoval(far); err != nil {
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

// maxProbe bounds the descriptors that are tried for gnet's epoll instance.
const maxProbe = 1 << 16

// findPoller finds gnet's epoll instance.
func (g *gate) findPoller() error {
	for fd := range maxProbe {
		if g.fd != fd && g.ctl(fd, unix.EPOLL_CTL_MOD, g.fd, unix.EPOLLIN|unix.EPOLLPRI) == nil {
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

// testRemoval tests that gnet reads from a connection, and nothing from one that is not registered with its epoll
// instance. It leaves the gate unregistered.
func (g *gate) testRemoval(far int) error {
	poke := func() error {
		_, err := unix.Write(far, []byte{0})
		return os.NewSyscallError("write", err)
	}
	if err := poke(); err != nil {
		return err
	}
	if _, ok := await(g.traffic); !ok {
		return errors.New("self test: gnet received nothing")
	}
	if err := g.ctl(g.epfd, unix.EPOLL_CTL_DEL, g.fd, 0); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if err := poke(); err != nil {
		return err
	}
	select {
	case <-g.traffic:
		return errors.New("self test: gnet received from a connection that was taken from it")
	case <-time.After(quiet):
	}
	return nil
}

// convert turns the connection into the gate.
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
	if g.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if g.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if err := g.watch(unix.EPOLL_CTL_ADD, g.wake, wakeData, unix.EPOLLIN|unix.EPOLLET); err != nil {
		return err
	}
	return os.NewSyscallError("epoll_ctl", g.ctl(g.epfd, unix.EPOLL_CTL_ADD, g.poll, unix.EPOLLIN))
}

// watch changes the registration of fd with the poll.
func (g *gate) watch(op, fd int, data int32, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(g.poll, op, fd, &unix.EpollEvent{Events: events, Fd: data}))
}

// testConverted tests that gnet calls for events of the poll, and only for them.
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
		if data, ok := await(g.traffic); !ok || data != wakeData {
			return errors.New("self test: the loop did not wake")
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const slot = 7
	if err := g.watch(unix.EPOLL_CTL_ADD, pair[0], slot, unix.EPOLLOUT|unix.EPOLLET); err != nil {
		return err
	}
	if data, ok := await(g.traffic); !ok || data != slot {
		return errors.New("self test: the loop did not see a writable socket")
	}
	return nil
}

// tested tells the self test that gnet has called.
func (g *gate) tested() {
	data := int32(noData)
	if g.poll >= 0 {
		var events [1]unix.EpollEvent
		if n, _ := unix.EpollWait(g.poll, events[:], 0); n == 1 {
			data = events[0].Fd
		}
	}
	select {
	case g.traffic <- data:
	default:
	}
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
	if _, ok := await(g.opened); !ok {
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

// yield makes the loop take turns with gnet from now on: Loop.run returns. The result ends that. It may be called on
// any goroutine, until the gate is released.
func (g *gate) yield() (end func()) {
	g.needed.Add(1)
	_ = g.ring()
	return func() { g.needed.Add(-1) }
}

// yields reports whether gnet is needed.
func (g *gate) yields() bool { return g.needed.Load() > 0 }

// release closes the descriptors that gnet does not know.
func (g *gate) release() {
	for _, fd := range []int{g.wake, g.poll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// await waits for what the self test expects on c. It reports false if that does not come in time.
func await[T any](c <-chan T) (v T, ok bool) {
	t := time.NewTimer(selfTest)
	defer t.Stop()
	select {
	case v = <-c:
		return v, true
	case <-t.C:
		return v, false
	}
}

// enroll gives the socket of c to the loop and returns after OnOpen was called for s. It
// closes c. The loop must not stop before enroll has returned.
func (g *gate) enroll(c net.Conn, s *socket) error {
	defer g.yield()()
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

// take moves the connection of s, which gnet has just opened, to the poll. When gnet closes the connection, it does
// not find its registration, which is an error that it passes on to nobody.
func (g *gate) take(s *socket) error {
	if err := g.ctl(g.epfd, unix.EPOLL_CTL_DEL, s.fd, 0); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	return s.loop.watch(s)
}

// A handler has the callbacks of gnet.
type handler struct{ gnet.BuiltinEventEngine }

func (*handler) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	switch x := c.Context().(type) {
	case *socket:
		x.gc, x.fd = c, c.Fd()
		if x.loop.gate.take(x) != nil {
			return nil, gnet.Close // and enroll returns an error
		}
		x.opened = true
		if x.loop.attached(x) {
			return nil, gnet.Close
		}
	case *gate:
		x.opened <- struct{}{}
	}
	return nil, gnet.None
}

func (*handler) OnTraffic(c gnet.Conn) gnet.Action {
	_, _ = c.Next(-1) // gnet would copy and keep what is not consumed
	if g, ok := c.Context().(*gate); ok {
		if g.loop != nil {
			g.loop.run()
		} else {
			g.tested()
		}
	}
	return gnet.None
}

func (*handler) OnClose(c gnet.Conn, _ error) gnet.Action {
	if s, ok := c.Context().(*socket); ok && s.opened {
		s.loop.ended(s)
	}
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
