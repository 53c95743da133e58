package tcpframe

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

// The plain text of tests: a probe that asks for TLS, and its Reply.
var (
	probe    = []byte("is there TLS?")
	starttls = []byte("STARTTLS")
)

// An authority is a CA of tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(name string) *authority {
	a := &authority{key: newKey(), pool: x509.NewCertPool()}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, t, t, a.key.Public(), a.key))))
	a.pool.AddCert(a.cert)
	return a
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// issue makes a certificate that change, if it is not nil, spoils.
func (a *authority) issue(name string, change func(*x509.Certificate)) tls.Certificate {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(t)
	}
	key := newKey()
	der := must(x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key))
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}

// testCA and testCert are what tests use that do not look at certificates.
var (
	testCA   = sync.OnceValue(func() *authority { return newAuthority("test CA") })
	testCert = sync.OnceValue(func() tls.Certificate { return testCA().issue("server.test", nil) })
)

func serverConfig() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{testCert()}} }

func clientConfig() *tls.Config {
	return &tls.Config{RootCAs: testCA().pool, ServerName: "server.test", NextProtos: []string{alpn}}
}

func newTLS(t testing.TB, c *tls.Config) *TLS {
	t.Helper()
	x, err := NewTLS(TLSOptions{Config: c, Timeout: peerLasts})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// A secureEcho is a TLSHandler that answers the probe, and then echoes.
type secureEcho struct {
	*recorder
	tls     *TLS
	secured func(*Conn, *tls.ConnectionState)
	c       atomic.Pointer[Conn]
	later   atomic.Pointer[func(*Conn)] // what Secured does, if a test says so when the Conn exists
	plain   func(*Conn)                 // is called before StartTLS
	answer  chan struct{}               // if not nil, the probe waits until this is closed
	waits   chan struct{}               // gets an element when a probe waits
	reads   bool                        // the Conn is not paused meanwhile
}

func newSecureEcho(t *TLS) *secureEcho { return &secureEcho{recorder: echo(), tls: t} }

func (h *secureEcho) Record(c *Conn, b Buffer) {
	if c.TLS() == nil && bytes.Equal(b.Bytes(), probe) {
		b.Release()
		if h.answer == nil {
			h.start(c)
		} else {
			h.startLater(c)
		}
		return
	}
	h.recorder.Record(c, b)
}

// start answers the probe.
func (h *secureEcho) start(c *Conn) {
	c.Send([][]byte{starttls}, nil)
	if h.plain != nil {
		h.plain(c)
	}
	c.StartTLS(h.tls)
}

// startLater lets the probe wait.
func (h *secureEcho) startLater(c *Conn) {
	if !h.reads {
		c.Pause()
	}
	h.waits <- struct{}{}
	go func() {
		<-h.answer
		c.Loop().Post(loop.TaskFunc(func() {
			h.start(c)
			if !h.reads {
				c.Resume()
			}
		}))
	}()
}

func (h *secureEcho) Opened(c *Conn) {
	h.c.Store(c)
	h.recorder.Opened(c)
}

// arrives waits until n octets of the peer have come in all.
func (h *secureEcho) arrives(t testing.TB, n int) {
	t.Helper()
	testkit.Eventually(t, "octets have come", func() bool { return onLoop(h.conn(), func() bool { return h.conn().rx == int64(n) }) })
}

// conn returns the Conn.
func (h *secureEcho) conn() *Conn { return h.c.Load() }

func (h *secureEcho) Secured(c *Conn, s *tls.ConnectionState) {
	if h.secured != nil {
		h.secured(c, s)
	}
	if f := h.later.Load(); f != nil {
		(*f)(c)
	}
}

// A tlsTest is a listener that has TLS.
type tlsTest struct {
	t   testing.TB
	e   *Engine
	l   *Listener
	mem *testMemory
	log *testkit.Log
	reg *metrics.Registry

	mu    sync.Mutex
	conns []*secureEcho
}

// newTLSTest starts a listener whose connections have the TLS of config. change may change the handler.
func newTLSTest(t testing.TB, e EngineOptions, o ListenOptions, x *TLS, change func(*secureEcho)) *tlsTest {
	t.Helper()
	y := &tlsTest{t: t, mem: &testMemory{}, log: new(testkit.Log), reg: metrics.New()}
	e.Metrics, e.Log = y.reg, zerolog.New(y.log)
	y.e = startLogging(t, e)
	if o.Conn.Memory == nil {
		o.Conn.Memory = lend(y.mem)
	}
	y.l = listen(t, y.e, o, func(*Conn) RecordHandler {
		h := newSecureEcho(x)
		if change != nil {
			change(h)
		}
		y.mu.Lock()
		y.conns = append(y.conns, h)
		y.mu.Unlock()
		return h
	})
	return y
}

// wantReceived waits until the listener has received n octets in all.
func (y *tlsTest) wantReceived(n uint64) {
	y.t.Helper()
	testkit.Eventually(y.t, "the octets are received", func() bool { return y.l.counters.received.Value() == n })
}

// last returns the handler of the latest connection.
func (y *tlsTest) last() *secureEcho {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.conns[len(y.conns)-1]
}

// counts returns the counters of TLS.
func (y *tlsTest) counts() *tlsCounters { return y.l.counters.countTLS() }

// failures returns how many connections are counted as failed for why.
func (y *tlsTest) failures(why TLSReason) uint64 { return y.counts().failures[why].Value() }

// wantFailure waits until n connections are counted as failed for why.
func (y *tlsTest) wantFailure(why TLSReason, n uint64) {
	y.t.Helper()
	testkit.Eventually(y.t, "counted as "+string(why), func() bool { return y.failures(why) == n })
}

// wantNone waits until no connection is counted anywhere, and no memory is in use.
func (y *tlsTest) wantNone() {
	y.t.Helper()
	c := y.counts()
	for name, value := range map[string]func() int64{
		"connections": func() int64 { return int64(connsOf(y.l)) }, "secured": c.conns.Value, "handshakes": c.handshakes.Value,
		"memory": y.mem.Used, "inbound": y.l.counters.inbound.Value, "outbound": y.l.counters.outbound.Value, "paused": y.l.counters.paused.Value,
	} {
		testkit.Eventually(y.t, "nothing is left: "+name, func() bool { return value() == 0 })
	}
	for _, q := range []*tlsloop.Queue{y.e.servers, y.e.clients} {
		testkit.Eventually(y.t, "no handshake is left", q.Empty)
	}
}

// ask connects and exchanges the probe.
func (y *tlsTest) ask() *peer {
	y.t.Helper()
	p := dialPeer(y.t, y.l)
	p.ask()
	return p
}

func (p *peer) ask() {
	p.t.Helper()
	p.send(fragment(true, probe))
	if got := p.readRecord(); !bytes.Equal(got, starttls) {
		p.t.Fatalf("the answer to the probe is %q", got)
	}
}

// A tlsPeer is a client with Go's own TLS over a blocking socket.
type tlsPeer struct {
	t testing.TB
	*tls.Conn
	tcp *net.TCPConn
}

// secure connects, exchanges the probe, and does the handshake.
func (y *tlsTest) secure(c *tls.Config) *tlsPeer {
	y.t.Helper()
	p := y.ask()
	return p.secure(c)
}

func (p *peer) secure(c *tls.Config) *tlsPeer {
	p.t.Helper()
	x := tls.Client(p.TCPConn, c)
	if err := x.HandshakeContext(context.Background()); err != nil {
		p.t.Fatalf("handshake: %v", err)
	}
	return &tlsPeer{p.t, x, p.TCPConn}
}

func (p *tlsPeer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

func (p *tlsPeer) readRecord() []byte {
	p.t.Helper()
	b, err := readRecord(p, nil)
	if err != nil {
		p.t.Fatalf("read record: %v", err)
	}
	return b
}

// served sends records of n octets, and reads them back.
func (p *tlsPeer) served(n int) {
	p.t.Helper()
	want := pattern(n, byte(n))
	go p.Write(fragment(true, want))
	if got := p.readRecord(); !bytes.Equal(got, want) {
		p.t.Fatalf("record of %d octets came back different", n)
	}
}
