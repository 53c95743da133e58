package tcpframe

// plainTail is the end of the plain text. RFC 9289 Section 5.1.1: "If spurious traffic appears on a TCP connection
// between the initial cleartext AUTH_TLS probe and the TLS session handshake, receivers MUST discard that data
// without response and then SHOULD drop the connection." An attacker on the path could otherwise put Calls of its
// own in front of the client's. What arrives before this side has sent what it answers cannot be an answer: for a
// server that is its Reply to the probe, for a client its ClientHello.

// early ends the connection if the peer has sent octets that wait in the kernel. It reports whether that is so.
func (s *session) early() bool {
	if !s.conn.sock.InputWaits() {
		return false
	}
	s.conn.failTLS(errBehindPlain)
	return true
}

// writePlain writes the records that leave in plain text, and then begins the handshake.
func (s *session) writePlain() {
	c := s.conn
	if s.early() {
		return
	}
	c.writeQueue(s.plain)
	if s.plain == nil && c.state == open && s.stage == plainTail {
		s.begin()
	}
}

// writeShaking writes the TLS records of the handshake.
func (s *session) writeShaking() {
	if !s.server && !s.spoke && s.out != nil {
		if s.early() {
			return
		}
		s.spoke = true
	}
	s.writeOut()
}

// arrivedEarly handles octets that arrive before the handshake is done.
func (s *session) arrivedEarly(b []byte) {
	switch {
	case s.stage == plainTail, s.stage == shaking && !s.server && !s.spoke:
		s.conn.failTLS(errBehindPlain)
	case s.stage == helloWait:
		s.shake.Arrived(b)
		s.checkHello()
	case s.stage == shaking:
		s.shake.Arrived(b)
	}
	if s.shake != nil && s.shake.IsFull() {
		s.conn.sock.FlushSoon() // to stop reading
	}
}
