package eventloop

import (
	"io"

	"golang.org/x/sys/unix"
)

// Sockets away from their loops
//
// gnet reads from every socket that it has. A socket that is paused stays with gnet as long as its peer sends nothing,
// which is the rule: a client waits for its Replies. When octets come nevertheless, the Conn holds them, and the
// socket leaves: it goes on in a duplicate of its descriptor, and gnet closes its own. The socket also leaves when the
// peer's FIN comes, of which gnet would make the end: the octets before it are not parsed yet. While it is away it can
// be written to, and the watcher sees when it is reset. It comes back with another descriptor when it is read from
// again.

// goAway moves the socket to a descriptor of its own. The caller makes gnet close its descriptor. goAway reports false
// when there is no descriptor left: then the connection ends.
func (s *Socket) goAway() bool {
	fd, err := s.gc.Dup()
	if err != nil {
		s.shut(err)
		return false
	}
	s.unwatch()
	s.gc.SetContext(nil)
	s.gc, s.fd = nil, fd
	s.updateSoon()
	return true
}

// back ends the way back of the socket, for which gnet has opened c. It reports whether c is the socket's connection
// from now on. It is not if the socket has ended meanwhile, or is paused again.
func (s *Socket) back(c conn) bool {
	s.returning = false
	if s.closing || s.paused {
		s.updateSoon()
		return false
	}
	s.unwatch()
	unix.Close(s.fd)
	s.gc, s.fd = c, c.Fd()
	s.updateSoon()
	return true
}

// failure returns why the socket, which is not read from, has ended.
func (s *Socket) failure() error {
	if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
		return unix.Errno(n)
	}
	return io.EOF
}

// unwatch ends the watch of the descriptor, which is still open.
func (s *Socket) unwatch() {
	s.loop.group.watcher.forget(s.watch)
	s.watch = nil
}

// happened follows events of the descriptor that x watches.
func (s *Socket) happened(x *watch, events uint32) {
	if s.watch != x || s.closing {
		return // it is another watch's time
	}
	if s.full {
		s.full = false
		s.stream.Writable()
	}
	if !s.closing && s.Away() && events&brokenEvents != 0 {
		s.shut(s.failure())
	}
}
