package tcpframe

import (
	"crypto/tls"
)

// TLS
//
// RFC 9289 begins every connection in plain text. A Call with the flavor AUTH_TLS asks whether the
// server has TLS, the verifier of its Reply says that it has, and behind the Reply the connection is one
// of TLS 1.3. The owner of a Conn recognises these two messages and calls Conn.StartTLS. From then on a
// session, which the Conn points to, stands between the records and the socket:
//
//	tls_plain.go      the end of the plain text: nothing may follow the message that ends it
//	tls_hello.go      a server's wait for the ClientHello; garbage ends here, without any cryptography
//	tls_shake.go      the handshake, which runs in package tlsloop
//	tls_recv.go       TLS records become RPC records, on the loop
//	tls_send.go       RPC records become TLS records, on the loop
//	tls_end.go        close_notify, alerts, and the end of a handshake whose socket has ended
//
// crypto/tls blocks inside a handshake only. Once that is done, its Read returns an error of the wire that
// says "temporary" when the wire has no octets, and can be called again: TestTemporary holds crypto/tls
// to it.
//
// crypto/tls starts no KeyUpdate itself. It answers those of the peer.

// A TLSHandler is a RecordHandler that calls StartTLS.
type TLSHandler interface {
	RecordHandler
	// Secured says that the handshake is done. It is called before the first record behind the
	// handshake is delivered. s must not be changed. The handler may refuse the peer: see
	// Conn.RefuseTLS.
	Secured(c *Conn, s *tls.ConnectionState)
}

// StartTLS switches the Conn to TLS: as a server if a Listener has accepted it, as a client if it was
// dialled. The handler, which must be a TLSHandler, calls it for the record that ends the plain text: in
// Record, or later if the Conn was paused since. It has queued its Reply before, if it has one to send.
//
// The records that are queued leave in plain text. What is sent later leaves encrypted, when the handshake
// is done. Octets that the peer has sent behind the record that ends the plain text end the connection. Pause
// does not keep octets from the handshake.
func (c *Conn) StartTLS(t *TLS) {
	if c.state != open {
		return
	}
	if c.tls != nil {
		panic("BUG: tcpframe: StartTLS on a Conn that has TLS")
	}
	_ = c.handler.(TLSHandler)
	c.loop.endRelay() // what it has for this Conn leaves in plain text
	c.tls = newSession(c, t)
	c.stall = stallCheck{}
	c.first = nil // SendFirst must not pass the records that leave in plain text
	if c.split.begun() || len(c.held) > 0 {
		c.failTLS(errBehindPlain)
		return
	}
	c.sock.FlushSoon()
}

// TLS returns what the handshake has agreed on, or nil if it is not over. A Conn that has ended before Secured was called may
// have it, too. The caller must not change it.
func (c *Conn) TLS() *tls.ConnectionState {
	if c.tls == nil {
		return nil
	}
	return c.tls.state
}

// Securing reports whether StartTLS was called and Secured was not.
func (c *Conn) Securing() bool { return c.tls != nil && c.tls.stage < secured }

// RefuseTLS ends a Conn for a reason that its TLS gives, such as a certificate that is no longer trusted. It
// is counted and logged like a handshake that has failed.
func (c *Conn) RefuseTLS(r TLSReason, err error) {
	if c.state != open || c.tls == nil {
		return
	}
	c.tls.notify()
	c.alertTLS(&TLSError{Reason: r, Err: err})
}
