package eventloop

// This is the only file that imports gnet, and it uses nothing but gnet's public interface. gnet's event loops are the
// loops: they wait for the sockets, read from them, and call the handler below.
//
// gnet does not do four things that are needed here:
//
//   - It copies what OnTraffic leaves unread into a buffer without a limit, and so does its Write with what the kernel
//     does not take. OnTraffic therefore consumes all octets, and sockets are written to directly: see socket.go.
//   - It cannot stop reading from a connection. A paused socket leaves its loop when its peer goes on: see away.go.
//   - It does not say when a socket can be written to again, or that one has ended that is not on a loop: see watch.go.
//   - Its Execute allocates, and gnet runs tasks until there are none before it looks at the sockets again, so that a
//     task that asks for another one would keep the sockets waiting for ever. A loop therefore wakes by a socket of its
//     own, the bell. Execute is for what it does best: to run after the sockets that are ready.

import (
	"context"
	"errors"
	"io"
	"net"
	"os"

	"github.com/panjf2000/gnet/v2"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// A driver is the event loop of gnet that runs a Loop: a gnet client with one loop, because a client with several
// would choose the loop of each connection itself.
type driver struct {
	run    *Loop
	client *gnet.Client
	loop   gnet.EventLoop
	bell   int // an octet that is written here wakes the loop
}

// startDriver starts the event loop that runs l.
func startDriver(l *Loop, log zerolog.Logger) (*driver, error) {
	c, err := gnet.NewClient(&handler{loop: l},
		gnet.WithNumEventLoop(1),
		gnet.WithReadBufferCap(ReadBuffer),
		gnet.WithLogger(&gnetLog{log: log}),
	)
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	d := &driver{run: l, client: c}
	if err := d.hangBell(); err != nil {
		_ = c.Stop()
		return nil, err
	}
	return d, nil
}

// hangBell gives the loop one end of its bell.
func (d *driver) hangBell() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	near, err := fileConn(pair[1])
	var c gnet.Conn
	if err == nil {
		c, err = d.client.EnrollContext(near, d.run)
	}
	if err != nil {
		unix.Close(pair[0])
		return err
	}
	d.bell, d.loop = pair[0], c.EventLoop()
	return nil
}

// fileConn makes a net.Conn of the socket fd, which it closes.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}

// stop ends the loop, whose connections must have been closed.
func (d *driver) stop() error {
	defer unix.Close(d.bell)
	return d.client.Stop()
}

var bellOctet = []byte{0}

// ring makes the loop run a pass after the sockets that are ready now. It may be called on any goroutine.
func (d *driver) ring() error {
	if _, err := unix.Write(d.bell, bellOctet); err != unix.EAGAIN { // EAGAIN: it rings
		return err
	}
	return nil
}

// execute runs l.summoned after the sockets that are ready now. It must be called while gnet calls for a socket: gnet
// runs what a task asks for before it looks at the sockets.
func (d *driver) execute() error { return d.loop.Execute(context.Background(), (*summons)(d.run)) }

// summons is a Loop as what gnet executes.
type summons Loop

func (t *summons) Run(context.Context) error { (*Loop)(t).summoned(); return nil }

// enroll gives the socket of c to the loop and returns after OnOpen was called for s. It closes c.
func (d *driver) enroll(c net.Conn, s *Socket) error {
	x := &enrolment{sock: s}
	if _, err := d.client.EnrollContext(c, x); err != nil {
		return err
	}
	if !x.opened {
		return errors.New("event loop did not take the socket") // gnet has closed it and returns no error
	}
	return nil
}

// close closes c, which must not be the connection for which gnet calls. OnClose comes before it returns.
func (d *driver) close(c conn) {
	g := c.(gnet.Conn)
	_ = g.EventLoop().Close(g)
}

// An enrolment is a socket on its way to its loop, and the context of its gnet connection until then.
type enrolment struct {
	sock   *Socket
	opened bool // OnOpen was called
}

// A handler has the callbacks of gnet. The context of a connection is its socket, the Loop for the bell, and nil for a
// socket that has left the loop.
type handler struct {
	gnet.BuiltinEventEngine
	loop *Loop
}

func (h *handler) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	x, ok := c.Context().(*enrolment)
	if !ok {
		return nil, gnet.None // the bell
	}
	x.opened = true
	c.SetContext(x.sock)
	if h.loop.opened(x.sock, c) {
		return nil, gnet.Close
	}
	return nil, gnet.None
}

func (h *handler) OnTraffic(c gnet.Conn) gnet.Action {
	b, _ := c.Next(-1)
	switch s := c.Context().(type) {
	case *Socket:
		if h.loop.traffic(s, b) {
			return gnet.Close
		}
	case *Loop:
		s.rings()
	}
	return gnet.None
}

func (h *handler) OnClose(c gnet.Conn, err error) gnet.Action {
	s, ok := c.Context().(*Socket)
	switch {
	case !ok:
	case err == nil:
		h.loop.closed(s, loop.ErrStopped) // gnet itself stops, unless the end of s has another reason
	case errors.Is(err, io.EOF):
		h.loop.closed(s, s.ended())
	default:
		h.loop.closed(s, err)
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
