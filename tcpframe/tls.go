package tcpframe

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
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
//	tls_queue.go      the handshakes that wait for a goroutine, and those that give way
//	tls_handshake.go  the handshake, on a goroutine of its own, over a pipe to the loop
//	tls_recv.go       TLS records become RPC records, on the loop
//	tls_send.go       RPC records become TLS records, on the loop
//	tls_end.go        close_notify, alerts, and the end of a handshake whose socket has ended
//	tls_wire.go       the net.Conn that crypto/tls reads and writes
//
// crypto/tls blocks inside a handshake only. Once that is done, its Read returns an error of the wire that
// says "temporary" when the wire has no octets, and can be called again: TestTemporary holds crypto/tls
// to it.
//
// crypto/tls starts no KeyUpdate itself. It answers those of the peer.

// alpn is the name of RPC in a TLS handshake. RFC 9289 Section 7.2.
const alpn = "sunrpc"

// TLSOptions configure connections that are switched to TLS.
type TLSOptions struct {
	// Config has the certificates, the CA pools and the names. NewTLS copies it, and sets the
	// versions and the protocol, which RFC 9289 Section 5 prescribes. Its callbacks run on the
	// goroutines of handshakes. It must not have GetConfigForClient: StartTLS is given another TLS
	// instead.
	Config *tls.Config
	// Timeout bounds each stage of a handshake: until the ClientHello has arrived, in the queue, and
	// the handshake itself.
	Timeout time.Duration
	// WithoutALPN makes a client accept a server that selects no protocol, which RFC 9289 Section 5
	// forbids and tlshd of ktls-utils 1.0.0 does. A server always accepts a client that offers none, and
	// never a client that offers others.
	WithoutALPN bool
}

// A TLS has what connections need to be switched to TLS. It is safe for concurrent use. A connection keeps
// the TLS that it was switched with.
type TLS struct {
	config      *tls.Config
	timeout     time.Duration
	withoutALPN bool
}

// NewTLS prepares o.
func NewTLS(o TLSOptions) (*TLS, error) {
	switch {
	case o.Config == nil:
		return nil, errors.New("tcpframe: TLSOptions.Config is missing")
	case o.Config.GetConfigForClient != nil:
		return nil, errors.New("tcpframe: TLSOptions.Config has GetConfigForClient, which would replace the prescribed settings")
	case o.Timeout <= 0:
		return nil, fmt.Errorf("tcpframe: TLSOptions.Timeout is %v; it must be above 0", o.Timeout)
	}
	c := o.Config.Clone()
	// "Implementations MUST NOT negotiate TLS versions prior to 1.3". RFC 9289 Section 5.
	c.MinVersion, c.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	c.NextProtos = []string{alpn}
	// Small records while a connection is young suit browsers. They cost RPC half of its throughput.
	c.DynamicRecordSizingDisabled = true
	return &TLS{config: c, timeout: o.Timeout, withoutALPN: o.WithoutALPN}, nil
}

// SetSessionTicketKeys replaces the keys of a server's session tickets: the first encrypts, all
// decrypt.
func (t *TLS) SetSessionTicketKeys(keys [][32]byte) { t.config.SetSessionTicketKeys(keys) }

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
	c.tls = newSession(c, t)
	c.stall = stallCheck{}
	c.first = nil // SendFirst must not pass the records that leave in plain text
	if c.split.begun() || len(c.held) > 0 {
		c.failTLS(errBehindPlain)
		return
	}
	c.sock.FlushSoon()
}

// TLS returns what the handshake has agreed on, or nil if the Conn is not secured. The caller must not change
// it.
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
