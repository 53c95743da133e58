package tcpframe

import "golang.org/x/sys/unix"

// An InputHandler is a RecordHandler that decides whether to read from a peer only when the peer
// has sent something.
type InputHandler interface {
	RecordHandler
	// Input is called once after AwaitInput, when octets of the peer have come. It
	// may pause the Conn before a record is read.
	Input(c *Conn)
}

// AwaitInput stops reading until octets of the peer wait, and then calls Input of the handler,
// which must be an InputHandler. Unlike a paused Conn, one that awaits input notices the peer's
// FIN and has an idle timeout. It is for a Conn from which nothing has been read yet.
func (c *Conn) AwaitInput() {
	if c.state != open {
		return
	}
	c.sock.awaits = true
}

// Input implements inputStream.
func (s *connStream) Input() bool {
	c := (*Conn)(s)
	if c.state != open {
		return true
	}
	c.sock.FlushSoon()
	c.handler.(InputHandler).Input(c)
	return c.state == open && !c.paused()
}

// An inputStream is a loop.Stream whose socket awaits input.
type inputStream interface {
	// Input is called once when octets wait. It reports whether they may be read now.
	Input() bool
}

// inputWaits reports whether octets wait to be read. It takes nothing.
func (s *socket) inputWaits() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(s.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n > 0 && err == nil
}
