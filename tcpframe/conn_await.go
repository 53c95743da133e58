package tcpframe

import "golang.org/x/sys/unix"

// An InputHandler is a RecordHandler that decides whether to read from a peer only when the peer
// has sent something.
type InputHandler interface {
	RecordHandler
	// Input is called once after AwaitInput, when octets of the peer wait in the kernel. It
	// may pause the Conn before an octet is read.
	Input(c *Conn)
}

// AwaitInput stops reading until octets of the peer wait, and then calls Input of the handler,
// which must be an InputHandler. Unlike a paused Conn, one that awaits input notices the peer's
// FIN and has an idle timeout. It is for a Conn from which nothing has been read yet.
func (c *Conn) AwaitInput() {
	if c.awaits || c.state != open {
		return
	}
	if err := c.sock.awaitInput(); err != nil {
		c.sock.shut(err)
		return
	}
	c.awaits = true
	c.sock.FlushSoon()
}

// Input implements inputStream. The handler is not told of a peer that has only closed: reading
// is resumed, and the loop sees the end.
func (s *connStream) Input() {
	c := (*Conn)(s)
	if !c.awaits {
		return
	}
	c.awaits = false
	c.sock.FlushSoon()
	if c.state == open && c.sock.inputWaits() {
		c.handler.(InputHandler).Input(c)
	}
}

// An inputStream is a loop.Stream that uses socket.awaitInput.
type inputStream interface {
	// Input is called once after awaitInput, when octets, FIN or an error wait.
	Input()
}

// awaitInput makes the loop call Input once.
func (s *socket) awaitInput() error { return s.awaitEvents(unix.EPOLLIN | unix.EPOLLRDHUP) }

// inputWaits reports whether octets wait to be read. It takes nothing.
func (s *socket) inputWaits() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(s.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n > 0 && err == nil
}
