package tcpframe

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// Sockets away from their loops
//
// gnet reads from every socket that it has. A socket that is paused stays with gnet as long as its peer sends nothing,
// which is the rule: a client waits for its Replies. When octets come nevertheless, the Conn holds them, and the
// socket leaves: it goes on in a duplicate of its descriptor, and gnet closes its own. The socket also leaves when the
// peer's FIN comes, of which gnet would make the end: the octets before it are not parsed yet. While it is away it can
// be written to, and the watcher sees when it is reset. It comes back with another descriptor when it is read from
// again.

// An enrolment is a socket on its way to its loop, and the context of its gnet connection until then.
type enrolment struct {
	sock   *socket
	opened bool // OnOpen was called
}

// goAway moves the socket to a descriptor of its own. The caller makes gnet close its descriptor. goAway reports false
// when there is no descriptor left: then the connection ends.
func (s *socket) goAway() bool {
	fd, err := s.gc.Dup()
	if err != nil {
		s.shut(err)
		return false
	}
	s.loop.engine.watcher.forget(s)
	s.gc.SetContext(nil)
	s.gc, s.fd = nil, fd
	s.updateSoon()
	return true
}

// away reports whether the socket has no gnet connection.
func (s *socket) away() bool { return s.gc == nil }

// comeBack gives a duplicate of the socket's descriptor to the loop. Without descriptors the next sweep tries again.
func (s *socket) comeBack() {
	l := s.loop
	if !l.engine.attaching() {
		return
	}
	s.returning = true
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		l.engine.attachments.Done()
		l.stuck = append(l.stuck, s)
		return
	}
	go func() {
		defer l.engine.attachments.Done()
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

// retry lets the sockets that could not come back try again.
func (l *Loop) retry() {
	for _, s := range l.stuck {
		s.returning = false
		s.updateSoon()
	}
	l.stuck = nil
}

// back ends the way back of the socket, for which gnet has opened c. It reports whether c is the socket's connection
// from now on. It is not if the socket has ended meanwhile, or is paused again.
func (s *socket) back(c gnetConn) bool {
	s.returning = false
	if s.closing || s.paused {
		s.updateSoon()
		return false
	}
	s.loop.engine.watcher.forget(s)
	unix.Close(s.fd)
	s.gc, s.fd = c, c.Fd()
	s.updateSoon()
	return true
}

// updateSoon makes the loop look at the end of the pass whether the socket has to come back or to be watched.
func (s *socket) updateSoon() {
	if !s.stale {
		s.stale = true
		s.loop.stale = append(s.loop.stale, s)
	}
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
		if s.away() && !s.paused && !s.returning {
			s.comeBack()
		}
		if s.away() || s.full {
			if err := l.engine.watcher.add(s); err != nil {
				s.shut(err)
			}
		}
	}
	l.stale = l.stale[:0]
}

// failure returns why the socket, which is not read from, has ended.
func (s *socket) failure() error {
	if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
		return unix.Errno(n)
	}
	return io.EOF
}
