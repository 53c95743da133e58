package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A ClientMode says whether clients have to show a certificate.
type ClientMode uint8

// The modes. A certificate that is not trusted is refused in both others.
const (
	ClientNone    ClientMode = iota // clients are not asked for one
	ClientRequest                   // clients are asked, and may have none
	ClientRequire                   // clients must have one
)

// ServerOptions are the files of a listener, and what it demands of clients.
type ServerOptions struct {
	Certificate string // PEM: the listener's certificate, then those of its issuers
	Key         string // PEM; "" if the file Certificate has the key, too
	Client      ClientMode
	CA          string        // PEM: who signs the certificates of clients; not for ClientNone
	CRL         string        // PEM: which certificates are revoked; "" for none
	Names       []string      // patterns, of which a client must match one; empty: any name
	Timeout     time.Duration // for each stage of a handshake
}

// A Server makes the configurations of a listener. Its methods are safe for concurrent use.
type Server struct {
	opts  ServerOptions
	names []Pattern

	current atomic.Pointer[serverState]

	mu    sync.Mutex // guards files; held while files are read
	files fileSet
}

type serverState struct {
	tls      *tcpframe.TLS
	leaf     *x509.Certificate
	trust    *trust
	own      Term
	warnings []string
}

// NewServer reads the files. A certificate that is not valid now, or not for much longer, is a warning,
// because a listener that does not listen would be worse; see Server.Warnings.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Key == "" {
		o.Key = o.Certificate
	}
	s := &Server{opts: o, files: newFileSet(o.Certificate, o.Key, o.CA, o.CRL)}
	var err error
	if s.names, err = patterns(o.Names); err != nil {
		return nil, err
	}
	c, sum, err := s.files.read()
	if err != nil {
		return nil, err
	}
	s.files.loaded, s.files.last = sum, sum
	t, err := s.load(c)
	if err != nil {
		return nil, err
	}
	s.current.Store(t)
	return s, nil
}

func patterns(all []string) (ps []Pattern, err error) {
	for _, n := range all {
		p, e := ParsePattern(n)
		err = errors.Join(err, e)
		ps = append(ps, p)
	}
	return ps, err
}

// load makes the configuration that the files c describe.
func (s *Server) load(c content) (*serverState, error) {
	o := &s.opts
	own, err := pair(c, o.Certificate, o.Key)
	if err != nil {
		return nil, err
	}
	t := &serverState{leaf: own.Leaf, own: termOf(own.Certificate)}
	if t.trust, t.warnings, err = newTrust(c, o.CA, o.CRL, s.names); err != nil {
		return nil, err
	}
	t.warnings = append(t.warnings, ending(o.Certificate, own.Leaf, time.Now(), soon)...)
	t.warnings = append(t.warnings, exposed(o.Key)...)
	if len(own.Leaf.DNSNames)+len(own.Leaf.IPAddresses) == 0 {
		t.warnings = append(t.warnings, fmt.Sprintf("%s: the certificate has no DNS name and no IP address among its subject alternative names, so clients cannot check that it is this host's", o.Certificate))
	}
	config := base()
	config.Certificates = []tls.Certificate{*own}
	// Package tlsconf verifies: see its comment.
	switch o.Client {
	case ClientRequest:
		config.ClientAuth = tls.RequestClientCert
	case ClientRequire:
		config.ClientAuth = tls.RequireAnyClientCert
	}
	config.ClientCAs = t.trust.roots // which CAs clients are told of
	required := o.Client == ClientRequire
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 && !required {
			return nil
		}
		return t.trust.verify(cs.PeerCertificates, clients, time.Now())
	}
	t.tls, err = tcpframe.NewTLS(tcpframe.TLSOptions{Config: config, Timeout: o.Timeout})
	return t, err
}

// TLS returns the configuration for the next connection.
func (s *Server) TLS() *tcpframe.TLS { return s.current.Load().tls }

// AsksClients reports whether clients are asked for a certificate.
func (s *Server) AsksClients() bool { return s.opts.Client != ClientNone }

// Warnings says what is wrong with the files in force, although they can be used.
func (s *Server) Warnings() []string { return s.current.Load().warnings }

// Recheck returns why a client that was trusted at the time at, with certs, would not be trusted with the
// CAs and the revoked certificates that are in force.
func (s *Server) Recheck(certs []*x509.Certificate, at time.Time) error {
	if len(certs) == 0 && s.opts.Client != ClientRequire {
		return nil
	}
	return s.current.Load().trust.recheck(certs, clients, at)
}

// Refresh puts the files in force if their content has changed. They must be as they were at the call
// before, because somebody may be writing them; now is for callers who know that nobody is. After an
// error the configuration is the old one, the error is returned once for each content, and the next call tries again.
func (s *Server) Refresh(now bool) (r Refreshed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, load, err := s.files.look(now)
	if !load {
		return r, nil
	}
	if err == nil {
		r, err = s.replace(c)
	}
	return r, s.files.used(err)
}

// replace puts the configuration that the files c describe in force.
func (s *Server) replace(c content) (r Refreshed, err error) {
	next, err := s.load(c)
	if err != nil {
		return r, err
	}
	old := s.current.Load()
	if err := spoils(s.opts.Certificate, next.leaf, old.leaf); err != nil {
		return r, err
	}
	s.current.Store(next)
	return Refreshed{Changed: true, Trust: old.trust.digest != next.trust.digest, Warnings: next.warnings}, nil
}

// spoils returns an error if the certificate next is not valid now while old is. Each may be nil.
func spoils(name string, next, old *x509.Certificate) error {
	if next == nil || old == nil {
		return nil
	}
	now := time.Now()
	err := invalid(name, next, now)
	if err != nil && invalid(name, old, now) != nil {
		return nil
	}
	return err
}
