package proxy_test

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
	"github.com/rdmabridge/rdmabridge/proxy/reach"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A security has the files of a listener and of an upstream, and the CAs that sign for them.
type security struct {
	t              *testing.T
	dir            string
	servers, users *tlstest.CA

	server tlsconf.ServerOptions
	client tlsconf.ClientOptions
}

// newSecurity makes a listener that requires certificates of clients, and an upstream that has one.
func newSecurity(t *testing.T) *security {
	t.Helper()
	x := &security{t: t, dir: t.TempDir(), servers: tlstest.NewCA(t, "servers"), users: tlstest.NewCA(t, "users")}
	x.renew("server", x.servers, tlstest.Subject{Name: "server", Names: []string{"127.0.0.1", "localhost"}})
	x.renew("user", x.users, tlstest.Subject{Name: "bridge", Names: []string{"bridge.example.com"}})
	x.server = tlsconf.ServerOptions{
		Certificate: x.path("server.pem"), Key: x.path("server.key"), Client: tlsconf.ClientRequire,
		CA: x.write("users.pem", x.users.PEM()), Timeout: 10 * time.Second,
	}
	x.client = tlsconf.ClientOptions{CA: x.write("servers.pem", x.servers.PEM()), Certificate: x.path("user.pem"), Key: x.path("user.key")}
	return x
}

func (x *security) path(name string) string { return x.dir + "/" + name }

func (x *security) write(name string, content ...[]byte) string {
	x.t.Helper()
	return tlstest.Write(x.t, x.dir, name, content...)
}

// renew writes a certificate and its key, one after the other.
func (x *security) renew(name string, ca *tlstest.CA, s tlstest.Subject) *tlstest.Pair {
	x.t.Helper()
	p := ca.Issue(x.t, s)
	x.write(name+".pem", p.Cert)
	x.write(name+".key", p.Key)
	return p
}

func (x *security) listener(required bool) *settings.ListenerTLS {
	x.t.Helper()
	s, err := tlsconf.NewServer(x.server)
	if err != nil {
		x.t.Fatal(err)
	}
	return &settings.ListenerTLS{Required: required, Server: s}
}

func (x *security) upstream(required bool) *reach.TLS {
	x.t.Helper()
	c, err := tlsconf.NewClient(x.client)
	if err != nil {
		x.t.Fatal(err)
	}
	return &reach.TLS{Required: required, Client: c}
}

// user is the configuration of a client that trusts the listener and has the certificate p, or none if p is
// nil. p is sent even if the listener does not know its CA.
func (x *security) user(p *tlstest.Pair) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x.servers.Pool(), ServerName: "localhost", NextProtos: []string{"sunrpc"}}
	if p != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p.Certificate, nil }
	}
	return c
}

// issue signs the certificate of a client.
func (x *security) issue(name string) *tlstest.Pair {
	x.t.Helper()
	return x.users.Issue(x.t, tlstest.Subject{Name: name, Names: []string{name + ".example.com"}})
}

// storage is the configuration of a server behind an upstream, which requires a certificate.
func (x *security) storage(p *tlstest.Pair) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.Certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x.users.Pool(), NextProtos: []string{"sunrpc"},
	}
}

// logged makes a Harness whose log the test can read.
func logged(t *testing.T) (*proxytest.Harness, *testkit.Log) {
	t.Helper()
	logs := new(testkit.Log)
	log := zerolog.New(logs).Level(zerolog.DebugLevel)
	h := proxytest.NewHarness(t, budget, func(o *tcpframe.EngineOptions) { o.Log = log })
	h.Log = log
	return h, logs
}

// A wireTap stands between a client and a server, and keeps the octets of both directions.
type wireTap struct {
	l  net.Listener
	wg sync.WaitGroup

	mu   sync.Mutex
	seen []byte
	open []net.Conn
	shut bool
}

func newWireTap(t *testing.T, to string) *wireTap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wireTap{l: l}
	w.wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			w.mu.Lock()
			if err != nil || w.shut {
				w.mu.Unlock()
				near.Close()
				if far != nil {
					far.Close()
				}
				continue
			}
			w.open = append(w.open, near, far)
			w.mu.Unlock()
			w.wg.Go(func() { w.copy(near, far) })
			w.wg.Go(func() { w.copy(far, near) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		w.shut = true
		for _, c := range w.open {
			c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

func (w *wireTap) addr() string { return w.l.Addr().String() }

func (w *wireTap) copy(to, from net.Conn) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		w.mu.Lock()
		w.seen = append(w.seen, b[:n]...)
		w.mu.Unlock()
		if _, e := to.Write(b[:n]); e != nil || err != nil {
			return
		}
	}
}

func (w *wireTap) octets() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// patterns returns the patterns that a rule or a tenant has of these names in certificates.
func patterns(t *testing.T, names ...string) (all []tlsconf.Pattern) {
	t.Helper()
	for _, name := range names {
		p, err := tlsconf.ParsePattern(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}
