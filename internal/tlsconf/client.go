package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// ClientOptions are the files of an upstream, and what it demands of servers.
type ClientOptions struct {
	CA          string // PEM: who signs the certificates of servers; "" for the CAs of the system
	CRL         string // PEM: which certificates are revoked; "" for none; needs CA
	Certificate string // PEM: the certificate that servers are shown; "" for none
	Key         string // PEM; "" if the file Certificate has the key, too
	ServerName  string // DNS name or IP address in the certificates of servers; "" for the host of each endpoint
}

// A Client makes the configurations of an upstream. Its methods are safe for concurrent use.
type Client struct {
	opts ClientOptions

	current atomic.Pointer[clientState]

	mu    sync.Mutex // guards files; held while files are read
	files fileSet
}

type clientState struct {
	version  uint64           // how many configurations have been in force before
	own      *tls.Certificate // nil for none
	trust    *trust
	term     Term // of own; zero without
	warnings []string
}

// NewClient reads the files, as NewServer does.
func NewClient(o ClientOptions) (*Client, error) {
	if o.Key == "" {
		o.Key = o.Certificate
	}
	if o.ServerName != "" {
		if err := checkServerName(o.ServerName); err != nil {
			return nil, err
		}
	}
	x := &Client{opts: o, files: newFileSet(o.CA, o.CRL, o.Certificate, o.Key)}
	c, sum, err := x.files.read()
	if err != nil {
		return nil, err
	}
	x.files.loaded, x.files.last = sum, sum
	t, err := x.load(c)
	if err != nil {
		return nil, err
	}
	x.current.Store(t)
	return x, nil
}

func (x *Client) load(c content) (*clientState, error) {
	o := &x.opts
	t := &clientState{}
	var err error
	if t.trust, t.warnings, err = newTrust(c, o.CA, o.CRL, nil); err != nil {
		return nil, err
	}
	if o.Certificate == "" {
		return t, nil
	}
	own, err := pair(c, o.Certificate, o.Key)
	if err != nil {
		return nil, err
	}
	t.own, t.term = own, termOf(own.Certificate)
	t.warnings = append(t.warnings, ending(o.Certificate, own.Leaf, time.Now(), soon)...)
	t.warnings = append(t.warnings, exposed(o.Key)...)
	return t, nil
}

// TLS returns the configuration for the next connection to endpoint, a host and a port. Each stage of the
// handshake may take timeout.
func (x *Client) TLS(endpoint string, timeout time.Duration) (*tcpframe.TLS, error) {
	t := x.current.Load()
	host := x.host(endpoint)
	c := base()
	c.ServerName = host
	c.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies: see the comment of the package.
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		return t.verify(cs.PeerCertificates, host, time.Now())
	}
	if t.own != nil {
		// A server names the CAs that it knows. The certificate is sent even if they do not have its
		// issuer: the server's log then says what is wrong.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.own, nil }
	}
	return tcpframe.NewTLS(tcpframe.TLSOptions{Config: c, Timeout: timeout, WithoutALPN: true})
}

// host returns the name that the certificate of the server at endpoint must have.
func (x *Client) host(endpoint string) string {
	if x.opts.ServerName != "" {
		return x.opts.ServerName
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return endpoint
	}
	return host
}

// leaf returns the upstream's own certificate, or nil.
func (t *clientState) leaf() *x509.Certificate {
	if t.own == nil {
		return nil
	}
	return t.own.Leaf
}

func (t *clientState) verify(certs []*x509.Certificate, host string, at time.Time) error {
	if err := t.trust.verify(certs, servers, at); err != nil {
		return err
	}
	if err := certs[0].VerifyHostname(host); err != nil {
		return refuse(tcpframe.TLSWrongName, fmt.Errorf("certificate %s: it is not for %s, but has %s; set tls.server_name if this is the right server", describe(certs[0]), host, listNames(certs[0])))
	}
	return nil
}

// Version is another number whenever Refresh has put other files in force.
func (x *Client) Version() uint64 { return x.current.Load().version }

// Warnings says what is wrong with the files in force, although they can be used.
func (x *Client) Warnings() []string { return x.current.Load().warnings }

// Recheck returns why a server that was trusted at the time at, with certs, would not be trusted with the
// CAs and the revoked certificates that are in force.
func (x *Client) Recheck(certs []*x509.Certificate, at time.Time) error {
	return x.current.Load().trust.recheck(certs, servers, at)
}

// Refresh does what Server.Refresh does.
func (x *Client) Refresh(now bool) (r Refreshed, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c, load, err := x.files.look(now)
	if !load {
		return r, nil
	}
	if err == nil {
		r, err = x.replace(c)
	}
	return r, x.files.used(err)
}

// replace puts the configuration that the files c describe in force.
func (x *Client) replace(c content) (r Refreshed, err error) {
	next, err := x.load(c)
	if err != nil {
		return r, err
	}
	old := x.current.Load()
	if err := spoils(x.opts.Certificate, next.leaf(), old.leaf()); err != nil {
		return r, err
	}
	next.version = old.version + 1
	x.current.Store(next)
	return Refreshed{Changed: true, Trust: old.trust.digest != next.trust.digest, Warnings: next.warnings}, nil
}

// checkServerName returns what is wrong with a value of ClientOptions.ServerName.
func checkServerName(s string) error {
	p, err := ParsePattern(s)
	if err != nil || p.uri != "" || p.dns != "" && p.dns[0] == '.' || p.net.IsValid() && !p.net.IsSingleIP() {
		return fmt.Errorf("%q is no name of a server; write the DNS name or the IP address that the server's certificate has", s)
	}
	return nil
}
