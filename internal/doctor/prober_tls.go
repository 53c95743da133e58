package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A TLS is how the connections to a Target use RPC-with-TLS.
type TLS struct {
	Config   *tcpframe.TLS
	Required bool
}

var errNoTLS = errors.New("the server does not offer TLS")

// A tlsStart is a connection on which TLS is to begin. It belongs to the connection's loop.
type tlsStart struct {
	config *tcpframe.TLS
	xid    uint32
	done   chan error // gets the result, one
}

// probe asks the server for TLS, as the bridge does.
func (s *tlsStart) probe(c *tcpframe.Conn, p Program) {
	c.Send([][]byte{oncrpc.AppendTLSProbe(nil, s.xid, p.Number, p.Version)}, released{})
}

// record handles what comes before TLS.
func (s *tlsStart) record(c *tcpframe.Conn, b []byte) {
	var r oncrpc.Reply
	switch err := oncrpc.ParseReply(b, &r); {
	case err != nil:
		s.end(err)
	case r.XID != s.xid:
		s.end(fmt.Errorf("the answer to the probe for TLS has the XID %x, not %x", r.XID, s.xid))
	case r.StartsTLS():
		c.StartTLS(s.config)
	default:
		s.end(errNoTLS)
	}
}

// end gives the result, unless there is one.
func (s *tlsStart) end(err error) {
	select {
	case s.done <- err:
	default:
	}
}

// Secured is part of tcpframe.TLSHandler.
func (c *tcpConversation) Secured(*tcpframe.Conn, *tls.ConnectionState) {
	c.secured = true
	s := c.start
	c.start = nil
	s.end(nil)
}

// secure waits until TLS has begun. Without TLS it succeeds if t does not require it.
func (c *tcpConversation) secure(ctx context.Context, t *Target, s *tlsStart) error {
	var err error
	select {
	case err = <-s.done:
	case <-c.endedc:
		err = c.err
		select {
		case err = <-s.done: // it says more
		default:
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if errors.Is(err, errNoTLS) && !t.TLS.Required {
		return nil
	}
	if err != nil {
		c.close()
		return &tlsError{err}
	}
	return nil
}

// A tlsError is an error of RPC-with-TLS, on a connection that has come about.
type tlsError struct{ err error }

func (e *tlsError) Error() string { return e.err.Error() }

func (e *tlsError) Unwrap() error { return e.err }

// judgeTLS reports why TLS has not begun.
func (t *Target) judgeTLS(err *tlsError, fs *Findings) {
	fix := []string{"systemctl status tlshd   # on a Linux server, whose exports need xprtsec=tls or mtls"}
	if !errors.Is(err, errNoTLS) {
		fix = []string{"openssl x509 -noout -subject -ext subjectAltName -dates -in FILE   # of the certificates of both sides", "journalctl -u tlshd   # on a Linux server"}
	}
	fs.Add("endpoint-tls", Error, t.subject(), fmt.Sprintf("The server accepts the connection, and RPC-with-TLS does not come about: %v.", err.err), fix...)
}

// judgePlain reports a connection that has no TLS although it could have some.
func (t *Target) judgePlain(e *Endpoint, fs *Findings) {
	if t.TLS != nil && !e.TLS {
		fs.Add("endpoint-tls", Warning, t.subject(), "The server does not offer TLS, and the bridge goes on without it, because tls.mode is optional.", "systemctl status tlshd   # on a Linux server, whose exports need xprtsec=tls or mtls")
	}
}
