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

// AwaitInput makes the Conn call Input of the handler, which must be an InputHandler, when octets of the peer come,
// and before it parses them. Unlike a paused Conn, one that awaits input notices the peer's FIN and has an idle
// timeout. It is for a Conn from which nothing has been read yet.
func (c *Conn) AwaitInput() {
	if c.state != open {
		return
	}
	c.sock.awaits = true
}

// inputWaits reports whether octets wait to be read. It takes nothing.
func (s *socket) inputWaits() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(s.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n > 0 && err == nil
}
