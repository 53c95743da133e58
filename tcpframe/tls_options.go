package tcpframe

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

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
