package tcpframe

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/tcpframe/tlsloop"
)

// Records of all lengths cross in both directions, and the handler sees what the handshake has agreed on.
func TestTLSEcho(t *testing.T) {
	t.Parallel()
	states := make(chan *tls.ConnectionState, 10)
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.secured = func(c *Conn, s *tls.ConnectionState) {
			if c.TLS() != s || c.Securing() {
				t.Error("Secured is called before the Conn is secured")
			}
			states <- s
		}
	})
	p := y.secure(clientConfig())
	if s := <-states; s.Version != tls.VersionTLS13 || s.NegotiatedProtocol != alpn || s.DidResume {
		t.Errorf("the handshake has agreed on %+v", s)
	}
	for _, n := range []int{8, 9, 100, 4096, tlsloop.MaxContent - 4, tlsloop.MaxContent, firstLease - 4, firstLease, firstLease + 1, 300_000, 1 << 20, testMaxRecord} {
		p.served(n)
	}
	if n := y.counts().full.Value(); n != 1 || y.counts().conns.Value() != 1 {
		t.Errorf("%d handshakes are counted", n)
	}
	p.Close()
	if err := y.last().wait(t, "close_notify"); err != nil && err.Error() != "EOF" {
		t.Errorf("Closed(%v), want EOF", err)
	}
	y.wantNone()
}

// clientHello returns what a client sends first.
func clientHello(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go tls.Client(a, c).Handshake()
	buf := make([]byte, 64<<10)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// A handshake in pieces of any length, octet by octet too, works.
func TestTLSPieces(t *testing.T) {
	t.Parallel()
	c := clientConfig()
	c.CurvePreferences = []tls.CurveID{tls.X25519} // a short ClientHello
	for _, n := range []int{1, 5, 100} {
		x, err := NewTLS(TLSOptions{Config: serverConfig(), Timeout: peerLasts})
		if err != nil {
			t.Fatal(err)
		}
		y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, x, nil)
		p := y.ask()
		peer := &tlsPeer{t, tls.Client(&dribble{p.TCPConn, y, n}, c), p.TCPConn}
		for _, k := range []int{8, 100, 1000} {
			want := pattern(k, 1)
			peer.send(fragment(true, want))
			if got := peer.readRecord(); !bytes.Equal(got, want) {
				t.Fatal("another record came back")
			}
		}
		peer.Close()
		y.wantNone()
	}
}

// A dribble writes n octets at a time, and waits until they were read.
type dribble struct {
	*net.TCPConn
	y *tlsTest
	n int
}

func (d *dribble) Write(b []byte) (int, error) {
	for i := 0; i < len(b); i += d.n {
		piece := b[i:min(i+d.n, len(b))]
		before := d.y.l.counters.received.Value()
		if _, err := d.TCPConn.Write(piece); err != nil {
			return i, err
		}
		d.y.wantReceived(before + uint64(len(piece)))
	}
	return len(b), nil
}

// Each fault of a client has its reason, for the counter, the log and the owner.
func TestTLSFailures(t *testing.T) {
	t.Parallel()
	strangers := newAuthority("strangers")
	config := serverConfig()
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, testCA().pool
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if s.PeerCertificates[0].Subject.CommonName == "revoked.test" {
			return &TLSError{TLSRevoked, errors.New("it is on the list")}
		}
		return nil
	}
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, config), nil)
	with := func(cert tls.Certificate, change func(*tls.Config)) *tls.Config {
		c := clientConfig()
		if cert.Certificate != nil {
			// Go's client would leave out a certificate that the server's CAs have not signed.
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		}
		if change != nil {
			change(c)
		}
		return c
	}
	good := testCA().issue("client.test", nil)
	for _, tt := range []struct {
		config *tls.Config
		want   TLSReason
		text   string // of the log
	}{
		{with(tls.Certificate{}, nil), TLSNoCertificate, "didn't provide a certificate"},
		{with(testCA().issue("c", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }), nil), TLSExpired, "expired"},
		{with(testCA().issue("c", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), nil), TLSExpired, "not yet valid"},
		{with(strangers.issue("c", nil), nil), TLSUnknownAuthority, "unknown authority"},
		{with(testCA().issue("c", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), nil), TLSBadCertificate, "key usage"},
		{with(testCA().issue("revoked.test", nil), nil), TLSRevoked, "it is on the list"},
		{with(good, func(c *tls.Config) { c.NextProtos = []string{"h2"} }), TLSNoALPN, "application protocols"},
		{with(good, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), TLSVersion, "unsupported versions"},
		{with(good, func(c *tls.Config) { c.ServerName = "another.test" }), TLSPeerAlert, "bad certificate"},
		{with(good, func(c *tls.Config) { c.RootCAs = strangers.pool }), TLSPeerAlert, "bad certificate"},
	} {
		before := y.failures(tt.want)
		p := y.ask()
		err := tls.Client(p.TCPConn, tt.config).Handshake()
		if err == nil { // the client is done before the server has seen its certificate
			p.wantEnd(string(tt.want))
		}
		y.wantFailure(tt.want, before+1)
		p.Close()
		e, ok := errors.AsType[*TLSError](y.last().wait(t, string(tt.want)))
		if !ok || e.Reason != tt.want || !strings.Contains(e.Error(), tt.text) {
			t.Errorf("%s: Closed(%v)", tt.want, e)
		}
		testkit.Eventually(t, "the log has "+tt.text, func() bool {
			return strings.Contains(y.log.String(), tt.text) || strings.Contains(y.log.String(), "suppressed")
		})
		p.Close()
	}
	x := y.secure(with(good, nil))
	x.served(1000)
	x.Close()
	// Clients without ALPN, such as tlshd, are accepted.
	x = y.secure(with(good, func(c *tls.Config) { c.NextProtos = nil }))
	x.served(1000)
	x.Close()
	y.wantNone()
}

// What is not TLS ends before any cryptography.
func TestTLSGarbage(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	hello := clientHello(t, clientConfig())
	long := bytes.Clone(hello)
	long[tlsloop.Header+1] = 0xff
	bad := bytes.Clone(hello)
	clear(bad[tlsloop.Header+handshakeMessage:])
	for i, b := range [][]byte{
		fragment(true, pattern(100, 1)),
		{0},
		{recordHandshake, 2},
		{recordHandshake, 3, 1, 0, 0},
		{recordHandshake, 3, 1, 0x40, 1},
		{recordHandshake, 3, 1, 0, 4, 2},
		{contentAlert, 3, 1, 0, 2, 2, 40},
		{contentData, 3, 3, 0, 2, 2, 40},
		long, bad,
		append([]byte{recordHandshake, 3, 1, 0, 1, 1}, 99),
	} {
		p := y.ask()
		p.send(b)
		p.wantEnd("garbage")
		y.wantFailure(TLSGarbage, uint64(i)+1)
	}
	y.wantNone()
}

// A client that stops ends, in each stage.
func TestTLSTimeouts(t *testing.T) {
	t.Parallel()
	x, err := NewTLS(TLSOptions{Config: serverConfig(), Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, x, nil)
	hello := clientHello(t, clientConfig())
	for i, b := range [][]byte{nil, hello[:3], hello[:len(hello)-1], hello} {
		p := y.ask()
		_, _ = p.Write(b) // the time may be over on a busy machine
		p.wantEnd("the client has stopped")
		y.wantFailure(TLSTimeout, uint64(i)+1)
	}
	y.wantNone()
}

// Behind the handshake, a TLS record may not stay incomplete. A connection without one stays.
func TestTLSStalls(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{Conn: ConnOptions{StallTimeout: 300 * time.Millisecond}}, newTLS(t, serverConfig()), nil)
	idle := y.secure(clientConfig())
	idle.served(100)
	c := y.craft()
	c.raw(c.record(contentData, pattern(100, 1), 0)[:60])
	(&peer{t, c.tcp}).wantEnd("the TLS record is incomplete")
	if n := y.l.counters.refused[reasonStalled].Value(); n != 1 {
		t.Errorf("%d connections are counted as stalled", n)
	}
	// Padding is no progress.
	c = y.craft()
	c.raw(c.record(contentData, []byte{0x80, 1, 0, 0}, 0))
	go func() {
		for {
			if _, err := c.tcp.Write(c.record(contentData, []byte{1}, 8000)); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond) // how slowly the peer sends
		}
	}()
	(&peer{t, c.tcp}).wantEnd("the record does not grow")
	if n := y.l.counters.refused[reasonStalled].Value(); n != 2 {
		t.Errorf("%d connections are counted as stalled", n)
	}
	idle.served(100)
	idle.Close()
	y.wantNone()
}

// A connection that ends inside the handshake is counted, and leaves nothing.
func TestTLSPeerCloses(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	hello := clientHello(t, clientConfig())
	for i, b := range [][]byte{nil, hello[:10], hello} {
		p := y.ask()
		p.send(b)
		if i == 1 {
			p.SetLinger(0)
		}
		p.Close()
		y.wantFailure(TLSPeerClosed, uint64(i)+1)
	}
	y.wantNone()
}

// An engine that stops ends handshakes in every stage.
func TestTLSStop(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{Handshakes: 1}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	hello := clientHello(t, clientConfig())
	for _, b := range [][]byte{nil, hello[:10], hello, hello, hello} {
		p := y.ask()
		p.send(b)
	}
	y.secureLater(t)
	testkit.Eventually(t, "all have begun", func() bool { return y.counts().handshakes.Value() >= 5 })
	y.e.Stop()
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, h := range y.conns {
		h.wait(t, "the engine has stopped")
	}
}

// secureLater begins a handshake that is not waited for.
func (y *tlsTest) secureLater(t *testing.T) {
	p := y.ask()
	go tls.Client(p.TCPConn, clientConfig()).Handshake()
}

// The end of a connection, by each side and in each way.
func TestTLSEnd(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	onLoop := func(f func(*Conn)) *tlsPeer {
		p := y.ask()
		y.last().later.Store(&f)
		return p.secure(clientConfig())
	}
	wantErr := func(err error, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("the error is %v, want %v", err, want)
		}
	}
	closing := errors.New("closing")
	// Close: what is queued, close_notify, FIN.
	want := pattern(3<<20, 1)
	p := onLoop(func(c *Conn) {
		c.Send([][]byte{want}, nil)
		c.Close(closing)
		c.due += int64(peerLasts) // a busy machine may need longer than closeTimeout
	})
	if got := p.readRecord(); !bytes.Equal(got, want) {
		t.Error("another record came")
	}
	_, err := p.Read(make([]byte, 1))
	wantErr(err, io.EOF)
	p.Close()
	wantErr(y.last().wait(t, "Close"), closing)
	// Abort: RST.
	p = onLoop(func(c *Conn) { c.Send([][]byte{want}, nil); c.Abort(closing) })
	if _, err = io.Copy(io.Discard, p); !isReset(err) {
		t.Errorf("the error is %v, want a reset", err)
	}
	wantErr(y.last().wait(t, "Abort"), closing)
	// RefuseTLS: close_notify and FIN, counted.
	p = onLoop(func(c *Conn) { c.RefuseTLS(TLSForbidden, closing) })
	_, err = p.Read(make([]byte, 1))
	wantErr(err, io.EOF)
	p.Close()
	wantErr(y.last().wait(t, "RefuseTLS"), closing)
	y.wantFailure(TLSForbidden, 1)
	// The peer's close_notify alone; it still reads what is queued. A busy machine may need longer than alertTimeout for more.
	want = want[:64<<10]
	p = onLoop(func(c *Conn) { c.Send([][]byte{want}, nil) })
	p.CloseWrite()
	if got := p.readRecord(); !bytes.Equal(got, want) {
		t.Error("another record came")
	}
	_, err = p.Read(make([]byte, 1))
	wantErr(err, io.EOF)
	wantErr(y.last().wait(t, "close_notify"), io.EOF)
	// FIN without close_notify, at the end of a record and inside one.
	p = onLoop(func(*Conn) {})
	p.served(100)
	p.tcp.CloseWrite()
	wantErr(y.last().wait(t, "FIN"), io.EOF)
	p = onLoop(func(*Conn) {})
	p.served(100)
	p.send(fragment(true, want)[:100])
	p.Close()
	wantErr(y.last().wait(t, "FIN inside a record"), io.ErrUnexpectedEOF)
	c := y.craft()
	c.raw(c.record(contentData, fragment(true, pattern(100, 1)), 0))
	c.readRecord()
	c.raw(c.record(contentData, pattern(100, 1), 0)[:60])
	c.tcp.Close()
	wantErr(y.last().wait(t, "FIN inside a TLS record"), io.ErrUnexpectedEOF)
	// Close during the handshake.
	q := y.ask()
	testkit.Eventually(t, "the handshake has begun", func() bool { return y.counts().handshakes.Value() == 1 })
	h := y.last()
	h.conn().Loop().Post(closeTask{h.conn(), closing})
	q.wantEnd("Close during the handshake")
	wantErr(h.wait(t, "Close during the handshake"), closing)
	y.wantNone()
}

type closeTask struct {
	c   *Conn
	err error
}

func (t closeTask) Run() { t.c.Close(t.err) }

// What is sent during the handshake leaves behind it, in order, and encrypted. SendFirst passes no record that leaves
// in plain text.
func TestTLSSendEarly(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.plain = func(c *Conn) { c.Send([][]byte{pattern(20, 1)}, nil) }
	})
	p := dialPeer(t, y.l)
	p.send(append(fragment(true, pattern(20, 9)), fragment(true, probe)...))
	for _, want := range [][]byte{pattern(20, 9), starttls, pattern(20, 1)} {
		if got := p.readRecord(); !bytes.Equal(got, want) {
			t.Errorf("in plain text came %q, want %q", got, want)
		}
	}
	h := y.last()
	h.conn().Loop().Post(sendTask{h.conn()})
	x := p.secure(clientConfig())
	for _, want := range [][]byte{pattern(30, 2), pattern(30, 3)} {
		if got := x.readRecord(); !bytes.Equal(got, want) {
			t.Errorf("encrypted came %q, want %q", got, want)
		}
	}
	x.served(100)
	x.Close()
	y.wantNone()
}

type sendTask struct{ c *Conn }

func (t sendTask) Run() {
	t.c.Send([][]byte{pattern(30, 2)}, nil)
	t.c.SendFirst([][]byte{pattern(30, 3)}, nil)
}

// A session that was resumed needs no certificates, as long as the key of its ticket is kept.
func TestTLSResumes(t *testing.T) {
	t.Parallel()
	x := newTLS(t, serverConfig())
	x.SetSessionTicketKeys([][32]byte{{1}})
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, x, nil)
	c := clientConfig()
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for i, tt := range []struct {
		keys    [][32]byte
		resumed uint64
	}{{[][32]byte{{1}}, 0}, {[][32]byte{{1}}, 1}, {[][32]byte{{2}, {1}}, 2}, {[][32]byte{{3}}, 2}} {
		x.SetSessionTicketKeys(tt.keys)
		p := y.secure(c)
		p.served(100) // the ticket comes before the record
		p.Close()
		if n, full := y.counts().resumed.Value(), y.counts().full.Value(); n != tt.resumed || n+full != uint64(i)+1 {
			t.Errorf("handshake %d: %d were resumed, %d were not", i, n, full)
		}
	}
	y.wantNone()
}

// Conns are clients, too.
func TestTLSDial(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	strangers := newAuthority("strangers")
	refused := uint64(0)
	for _, tt := range []struct {
		change func(*tls.Config)
		want   TLSReason // "" for none
	}{
		{nil, ""},
		{func(c *tls.Config) { c.ServerName = "another.test" }, TLSWrongName},
		{func(c *tls.Config) { c.RootCAs = strangers.pool }, TLSUnknownAuthority},
		{func(c *tls.Config) { c.Time = func() time.Time { return time.Now().Add(36 * time.Hour) } }, TLSExpired},
	} {
		config := clientConfig()
		if tt.change != nil {
			tt.change(config)
		}
		h := dialSecure(t, y, newTLS(t, config))
		err := h.wait(t, "the client is done")
		e, _ := errors.AsType[*TLSError](err)
		if tt.want == "" && err != nil || tt.want != "" && (e == nil || e.Reason != tt.want) {
			t.Errorf("Closed(%v), want %q", err, tt.want)
		}
		if tt.want != "" {
			refused++
			y.wantFailure(TLSPeerAlert, refused) // the server has got the alert
		}
	}
	y.wantNone()
}

// dialSecure dials y, exchanges records of many lengths, and closes.
func dialSecure(t testing.TB, y *tlsTest, x *TLS) *secureEcho {
	sizes := []int{8, 70_000, 100, 1 << 20, 5000, 200_000, 9}
	h := &secureEcho{recorder: newRecorder(), tls: x}
	n := 0
	next := func(c *Conn) {
		if n == len(sizes) {
			c.Close(nil)
			return
		}
		msg := pattern(sizes[n], byte(n))
		c.Send([][]byte{msg[:4], nil, msg[4:7], msg[7:]}, nil)
	}
	h.opened = func(c *Conn) { c.Send([][]byte{probe}, nil) }
	h.record = func(c *Conn, b Buffer) {
		defer b.Release()
		if c.TLS() == nil {
			if !bytes.Equal(b.Bytes(), starttls) {
				t.Errorf("the Reply to the probe is %q", b.Bytes())
			}
			c.StartTLS(h.tls)
			return
		}
		if !bytes.Equal(b.Bytes(), pattern(sizes[n], byte(n))) {
			t.Errorf("record %d differs", n)
		}
		n++
		next(c)
	}
	h.secured = func(c *Conn, _ *tls.ConnectionState) { next(c) }
	if _, err := y.e.Dial(context.Background(), y.l.Addr().String(), nil, DialOptions{Name: "up", Conn: bounds(ConnOptions{Memory: lend(y.mem)})}, recordOf{h}); err != nil {
		t.Fatal(err)
	}
	return h
}

// recordOf is a secureEcho whose Record is that of its recorder.
type recordOf struct{ *secureEcho }

func (r recordOf) Record(c *Conn, b Buffer) { r.recorder.Record(c, b) }

// A client that does not read stops the Conn from reading, and nothing is lost when it reads again.
func TestTLSBackpressure(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{Conn: ConnOptions{MaxOutbound: 1 << 20}}, newTLS(t, serverConfig()), nil)
	p := y.secure(clientConfig())
	const n, size = 60, 1 << 20
	go func() {
		for i := range n {
			p.Write(fragment(true, pattern(size, byte(i))))
		}
	}()
	testkit.Eventually(t, "reading is paused", func() bool { return y.l.counters.paused.Value() == 1 })
	if peak := y.mem.Peak(); peak > 20<<20 {
		t.Errorf("%d octets of memory are in use", peak)
	}
	q := y.secure(clientConfig()) // another client of the loop
	q.served(10_000)
	for i := range n {
		if got := p.readRecord(); !bytes.Equal(got, pattern(size, byte(i))) {
			t.Fatalf("record %d differs", i)
		}
	}
	p.Close()
	q.Close()
	y.wantNone()
}

// Pauses, and memory that is short, lose nothing: also where crypto/tls has octets left that were not read.
func TestTLSPauses(t *testing.T) {
	t.Parallel()
	mem := &testMemory{limit: 3 << 20}
	n := 0
	y := newTLSTest(t, EngineOptions{Loops: 1, MemoryTimeout: peerLasts}, ListenOptions{Conn: ConnOptions{Memory: lend(mem)}}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.record = func(c *Conn, b Buffer) {
			c.Send([][]byte{b.Bytes()}, b)
			if n++; n%3 == 0 {
				c.Pause()
				time.AfterFunc(time.Duration(n%5)*time.Millisecond, func() { c.Loop().Post(resumeTask{c}) })
			}
		}
	})
	var peers []*tlsPeer
	for range 4 {
		peers = append(peers, y.secure(clientConfig()))
	}
	sizes := []int{8, 100, 5000, 16380, 300, 70_000, 1 << 20, 12, 300_000}
	done := make(chan error, len(peers))
	for k, p := range peers {
		go func() {
			for i := range 60 {
				p.Write(fragment(true, pattern(sizes[(i+k)%len(sizes)], byte(i))))
			}
		}()
		go func() {
			for i := range 60 {
				got, err := readRecord(p, nil)
				if err != nil || !bytes.Equal(got, pattern(sizes[(i+k)%len(sizes)], byte(i))) {
					done <- errors.Join(errors.New("a record differs"), err)
					return
				}
			}
			done <- nil
		}()
	}
	for range peers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if mem.Waits() == 0 {
		t.Error("memory was never short")
	}
	for _, p := range peers {
		p.Close()
	}
	y.wantNone()
}

type resumeTask struct{ c *Conn }

func (t resumeTask) Run() { t.c.Resume() }

// TestTemporary: crypto/tls goes on after an error of the net.Conn that is temporary, in the middle of a record too.
func TestTemporary(t *testing.T) {
	y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	c := y.craft()
	want := pattern(1000, 1)
	c.raw(c.record(contentData, fragment(true, want), 0))
	c.readRecord() // the octets of the handshake are received as well
	b := c.record(contentData, fragment(true, want), 10)
	for _, piece := range [][]byte{b[:3], b[3:5], b[5:6], b[6:900], b[900:]} {
		before := y.l.counters.received.Value()
		c.raw(piece)
		y.wantReceived(before + uint64(len(piece)))
	}
	if got := c.readRecord(); !bytes.Equal(got, want) {
		t.Error("another record came back")
	}
	if e := net.Error(tlsloop.ErrWouldBlock); !e.Temporary() { //nolint:staticcheck // crypto/tls asks for it
		t.Error("the error is not temporary")
	}
}
